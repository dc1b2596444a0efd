"""The wiring list of what there is on a cluster only."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import structlog

from servicekit.clock import Clock
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.errors import ApiError, ConfigurationError
from servicekit.kubernetes.server import ApiServer, Call
from supervisor.cluster.allocation import Allocation
from supervisor.cluster.events import ClusterEvents
from supervisor.cluster.view import ClusterView
from supervisor.decide.grant import Grant
from supervisor.domain.drill import EVENT_REASON
from supervisor.domain.ids import STANDALONE, Host, JobName, kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import API_SOURCES, ReclaimNotice, Subject, SubjectKind
from supervisor.domain.placement import Placement
from supervisor.identity.jwks import JwksVerifier
from supervisor.identity.pod_tokens import PodTokens
from supervisor.identity.token_review import TokenReviewVerifier
from supervisor.ingest.cluster.reconciler import SignalReconciler
from supervisor.jobs.kinds import Adapter
from supervisor.jobs.trainingjob.adapter import Ports as TrainingJobPorts
from supervisor.jobs.trainingjob.adapter import TrainingJobs
from supervisor.jobs.trainingjob.objects import KIND as TRAINING_JOB
from supervisor.jobs.trainingjob.objects import SCALE_OUT
from supervisor.jobs.trainingjob.scaleouts import ScaleOuts
from supervisor.jobs.trainingjob.watch import TrainingJobWatch
from supervisor.observability.hooks import UNKNOWN_LOCATION, NodeLocation
from supervisor.settings import Settings
from supervisor.store.interface import Store, StoreError

_ZONE = "topology.kubernetes.io/zone"
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_GPU = "/gpu"
"""How the resources of all makers end, such as `nvidia.com/gpu`."""

_STEP_SECONDS = 5.0
"""By which the machine's clock differs from the API server's, at least, for that to be worth a word."""

_LABELS = frozenset({"training-job-name", "training-job-role", "replica-index", SCALE_OUT})

_log = structlog.get_logger()


class ClusterWiring:
    """The cluster around the supervisor: what it sees of it, and the jobs that others run there.

    Open with `open`, wire with `wire`, close.
    """

    def __init__(self, server: ApiServer, settings: Settings, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._changed: Callable[[], None] = lambda: None
        self.view = ClusterView(server, _LABELS, clock, self._tell)
        self._time = time = ClusterClock(clock)
        server.on_date = time.observe
        self._events = ClusterEvents(server, settings.event_leads, clock)
        # Followed like the others, and apart from them: what they announce is of another source.
        self._drills = ClusterEvents(server, {EVENT_REASON: 0.0}, clock)
        self._words = SignalReconciler(self.view, self._events, settings, clock, time.now, drills=self._drills)
        self._keys = JwksVerifier(server, settings.token_audience, settings.token_issuer, clock)
        reviews = TokenReviewVerifier(server, settings.token_audience, clock)
        self.pod_tokens = PodTokens(self._keys, reviews, self.view, settings.agent_account, clock)
        self.training_jobs = TrainingJobWatch(server, self.view, clock)
        self._scale_outs = ScaleOuts(server, self.training_jobs, clock)
        self.training_jobs.smaller_moved = self._scale_outs.changed = self._tell
        self._shares = Allocation(
            self.view, settings, self.training_jobs.ask, self.placements, self._scale_outs.growable
        )

    @classmethod
    async def open(cls, kubeconfig: str | None, settings: Settings, clock: Clock) -> Self:
        """Connects and reads everything; waits for an API server that is away.

        Raises:
            StoreError: There is no cluster to connect to, or it may not be read.
        """
        try:
            server = await ApiServer.connect(kubeconfig, settings.store_timeout_seconds)
        except ConfigurationError as error:
            raise StoreError(str(error)) from error
        cluster = cls(server, settings, clock)
        try:
            for reflector in cluster.view.reflectors:
                await reflector.first()
            with suppress(ApiError):  # Nothing is to wait for these, as there may be none.
                await cluster.training_jobs.first()
        except ApiError as error:
            await cluster.close()
            raise StoreError(f"cannot read the cluster: {error}") from error
        except BaseException:
            await cluster.close()
            raise
        return cluster

    def wire(
        self,
        store: Store,
        changed: Callable[[], None],
        may_act: Callable[[], bool],
        hosts: Callable[[JobName], Collection[Host]],
    ) -> None:
        """Connects it with the rest, before its `adapters` are asked for.

        Args:
            store: What is observed goes there.
            changed: Called whenever a decision may turn out otherwise.
            may_act: Asked before anything is done.
            hosts: Those of a job from which processes have a stream.
        """
        self._changed = changed
        self._store = store
        self._may_act = may_act
        self._training_jobs = TrainingJobs(
            TrainingJobPorts(
                server=self._server,
                view=self.view,
                watch=self.training_jobs,
                scale_outs=self._scale_outs,
                store=store,
                may_act=may_act,
                hosts=hosts,
                clock=self._clock,
                cluster_now=self._time.now,
            )
        )

    def lead(self, may_act: Callable[[], bool]) -> None:
        """Changes nothing from now on while it is not certain that this supervisor leads."""
        self._server.guard = may_act

    async def follow_its_clock(self) -> None:
        """Counts instants by the API server's clock from now on, as whoever led before did.

        Its last answer says enough where it does not answer now: clocks drift little.
        """
        with suppress(ApiError):
            await self._server.request(Call(method="GET", path="/version"))
        moved = self._time.correct_own_clock()
        if abs(moved) > _STEP_SECONDS:
            _log.warning("clock.stepped", seconds=round(-moved, 1))

    @property
    def standby(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Root tasks, by name, also of a supervisor that does not lead yet."""
        return {
            **{f"cluster.{number}": each.run for number, each in enumerate(self.view.reflectors)},
            **{f"events.{reason}": each.run for reason, each in self._events.reflectors.items()},
            **{f"drills.{reason}": each.run for reason, each in self._drills.reflectors.items()},
            "keys": self._keys.run,
            "trainingjob.follow": self.training_jobs.follow,
            "scaleout.follow": self._scale_outs.follow,
        }

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Root tasks of the leader, by name."""
        return {
            "cluster.words": lambda: self._words.run(self._store),
            "trainingjob.observe": partial(self.training_jobs.observe, self._store),
            "trainingjob.heed": partial(self.training_jobs.heed, self._store),
            "trainingjob.act": self._training_jobs.run,
            "scaleout.tidy": partial(self._scale_outs.tidy, self._store, self._may_act),
        }

    async def close(self) -> None:
        """Ends the connections."""
        await self._server.close()

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """By the kind of job, in lower case."""
        return {TRAINING_JOB: self._training_jobs}

    @property
    def nodes_version(self) -> int:
        """See `supervisor.control.facts.Surroundings`."""
        return self.view.nodes_version

    @property
    def node_objects(self) -> Mapping[Host, str]:
        """See `supervisor.control.facts.Surroundings`."""
        return self.view.node_uids

    def placements(self, name: JobName) -> Mapping[Host, Placement] | None:
        """See `supervisor.control.facts.Surroundings`."""
        return None if kind_of(name) == STANDALONE else self.training_jobs.placements(name)

    def granted(self, jobs: Sequence[SupervisedJob], noticed: Collection[Host]) -> Mapping[JobName, Grant]:
        """See `supervisor.control.facts.Surroundings`."""
        return self._shares.granted(jobs, noticed)

    def is_there(self, notice: ReclaimNotice) -> bool | None:
        """Whether the subject is there; None where the cluster cannot tell, as of the machines that agents speak of."""
        subject = notice.subject
        if subject.kind is SubjectKind.NODE:
            here = self.view.node_uids.get(Host(subject.name)) == subject.uid
            return here if notice.source in API_SOURCES else None
        pod = self.view.pod(subject.uid)
        if pod is None or pod.over:
            return False
        # One that has been told to end may stay in the list for as long as its node does not answer.
        return True if pod.deleted_at is None else None

    def node_of(self, pod: Subject) -> Host | None:
        """The node that a pod is bound to, which never changes; None where it is not seen."""
        seen = self.view.pod(pod.uid)
        return Host(seen.node) if seen is not None and seen.node else None

    def place_of(self, subject: Subject) -> NodeLocation:
        """Where a node or a pod is, by its node's labels; unknown where the cloud has not labelled it."""
        name = self.node_of(subject) if subject.kind is SubjectKind.POD else Host(subject.name)
        node = None if name is None else self.view.node(name)
        labels = {} if node is None else node.labels
        return NodeLocation(
            labels.get(_ZONE, UNKNOWN_LOCATION.zone), labels.get(_INSTANCE_TYPE, UNKNOWN_LOCATION.instance_type)
        )

    def gpus(self, name: JobName) -> float | None:
        """How many each of a job's workers asks for; None where its pods are not known."""
        ask = self.training_jobs.ask(name)
        if ask is None:
            return None
        return sum(amount for resource, amount in ask.worker.requests.items() if resource.endswith(_GPU)) / 1000

    def _tell(self) -> None:
        self._changed()
