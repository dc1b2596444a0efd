"""Builds what only a cluster has: the caches of every replica, the components of the leader, and the replica itself.

A replica keeps its caches up to date, and serves once it leads.
"""

import os
import socket
from asyncio import Event
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.errors import ApiError, ConfigurationError
from servicekit.kubernetes.server import ApiServer, Call, always
from servicekit.lifecycle import run_tasks
from servicekit.reconcile import Notifier
from servicekit.settings import SettingsError
from servicekit.tls import ServerCertificate
from supervisor.cluster import allocation, events, view
from supervisor.cluster.gangs import PodGroup, PodGroups
from supervisor.cluster.requests import ClusterRequests
from supervisor.decide.grant import Grant
from supervisor.domain.capacity import Machine, Placement
from supervisor.domain.ids import STANDALONE, Host, JobName, kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import API_SOURCES, EVENT_REASON, ReclaimNotice, Subject, SubjectKind
from supervisor.fanout.processes import Processes
from supervisor.fanout.ranks import Saves
from supervisor.identity import pod_tokens, verifiers
from supervisor.identity.people import People, Steering
from supervisor.identity.reviews import ReviewedPeople
from supervisor.ingest.cluster import reconciler, signals
from supervisor.ingest.cluster.jobs import JobReconciler
from supervisor.jobs.actuator import Actuator, ActuatorDependencies
from supervisor.jobs.cache import ClusterJobs, JobCache, connect
from supervisor.jobs.kind import Admission, AnyKind, ClusterContext, JobState
from supervisor.jobs.queues.kubequeue import admission
from supervisor.jobs.queues.kueue.booster import Booster, BoosterDependencies, BoostPolicy
from supervisor.jobs.queues.kueue.workloads import WORKLOADS, Workloads
from supervisor.jobs.registry import POD_LABELS, RESOURCES, chosen, process_of
from supervisor.jobs.steering import ClusterSteering
from supervisor.leadership.elected import ElectedLeadership, ElectionOptions
from supervisor.observability.events import api, recorder
from supervisor.refusals import Refusals
from supervisor.settings import PREFIX, Settings
from supervisor.store.interface import Store, StoreError
from supervisor.store.kubernetes import KubernetesStore, KubernetesStoreOptions
from supervisor.webhook.injection import NoticedNodes
from supervisor.webhook.mutation import PodInjection
from supervisor.webhook.server import Reviewed, Webhook

_GPU = "/gpu"
"""The suffix of GPU resources of all vendors, such as `nvidia.com/gpu`."""

_REPORTER = "job-supervisor.kube-ai.io/page"
"""Who reports the Events of drills that are asked for on the page."""

_STEP_SECONDS = 5.0
"""A difference between the machine's clock and the API server's is logged from this size on."""

Task = Callable[[], Coroutine[Any, Any, None]]
Tasks = Mapping[str, Task]
"""Root tasks by name."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDependencies:
    """The parts of the process from which the caches of a cluster are built.

    `may_act` is called before every change that no other check guards, `on_change` whenever a decision may turn out
    differently. `may_write` guards every request that changes something.
    `people` are the cluster's users, if they may sign in.
    """

    kubeconfig: str | None
    settings: Settings
    clock: Clock
    store: Store
    may_act: Callable[[], bool]
    may_write: Callable[[], bool] = always
    on_change: Callable[[], None]
    bulkhead: Bulkhead
    people: People | None = None


class WatchedCluster:
    """The caches of the cluster that every replica keeps; implements `ClusterFacts`. Create it with `open`."""

    def __init__(
        self, server: ApiServer, time: ClusterClock, on: ClusterDependencies, kinds: Collection[AnyKind]
    ) -> None:
        self.server, self.time, self._on = server, time, on
        self.people = on.people
        settings, clock, bulkhead = on.settings, on.clock, on.bulkhead
        namespaces = settings.namespaces
        self.view = view.ClusterView(server, POD_LABELS, clock, on.on_change, bulkhead)
        self._events = events.ClusterEvents(server, settings.event_leads, clock, bulkhead)
        # Separate from the other Events: drills are another source.
        self._drills = events.ClusterEvents(server, {EVENT_REASON: 0.0}, clock, bulkhead)
        # From the first list on: what was announced before this supervisor leads is news to it when it does.
        self.signals = reconciler.SignalReconciler(
            self.view,
            self._events,
            settings,
            clock,
            time.now,
            drills=self._drills,
            taint_leads=settings.taint_leads,
            bulkhead=bulkhead,
        )
        context = ClusterContext(
            server=server,
            pods=self.view.pod_collection,
            snapshot=on.store.snapshot,
            may_act=on.may_act,
            on_change=on.on_change,
            clock=clock,
            bulkhead=bulkhead,
            namespaces=namespaces,
        )
        self.workloads = workloads = Workloads(server, clock, self._queue_changed, bulkhead, namespaces=namespaces)

        def admissions(state: JobState[Any]) -> Admission | None:
            """The answer of the queue that manages a job; None if no queue does."""
            return workloads.admission(state) or admission(state)

        self.groups = PodGroups(server, clock, self._regrouped, bulkhead, namespaces=namespaces)

        def groups(state: JobState[Any]) -> Collection[PodGroup]:
            """The PodGroups of a job."""
            return self.groups.of(state.job, state.gangs)

        caches = [
            JobCache(
                kind,
                server,
                self.view,
                clock,
                bulkhead,
                namespaces=namespaces,
                admissions=admissions,
                groups=groups,
            )
            for kind in kinds
        ]
        self.jobs = ClusterJobs([connect(cache.kind, cache, context, workloads) for cache in caches])
        self.jobs.subscribe(lambda _names: on.on_change())
        source = allocation.JobCapacitySource(
            resource_request=self.jobs.resource_request, placements=self.jobs.placements, growable=self.jobs.growable
        )
        self._allocation = allocation.Allocation(self.view, settings, source, bulkhead)
        self._keys = verifiers.JwksVerifier(server, settings.token_audience, settings.token_issuer, clock)
        self.pod_tokens = pod_tokens.PodTokens(
            published=self._keys,
            reviews=verifiers.TokenReviewVerifier(server, settings.token_audience, clock),
            pods=self.view,
            process_of=lambda uid: process_of(self.view.pod(uid), self.jobs.owner_of),
            agent_account=settings.agent_account,
            clock=clock,
        )

    def steering(self, own: Steering) -> Steering:
        """Carries out what people ask for; `own` does so for operators."""
        if self.people is None:
            return own
        return ClusterSteering(
            people=self.people,
            requests=ClusterRequests(self.server, self.time.now, _REPORTER),
            resources=RESOURCES,
            own=own,
        )

    @classmethod
    async def open(cls, on: ClusterDependencies) -> Self:
        """Connects and lists everything; waits for an unavailable API server.

        Raises:
            SettingsError: A kind of jobs is unknown.
            StoreError: There is no cluster to connect to, or it may not be read.
        """
        try:
            kinds = chosen(on.settings.kinds)
        except ValueError as error:
            raise SettingsError(f"{PREFIX}KINDS", str(error)) from error
        _log.info("kinds.supervised", kinds=[kind.name for kind in kinds])
        time, seconds = ClusterClock(on.clock), on.settings.store_timeout_seconds
        try:
            server = await ApiServer.connect(on.kubeconfig, seconds, on_date=time.observe, may_write=on.may_write)
        except ConfigurationError as error:
            raise StoreError(str(error)) from error
        cluster = cls(server, time, on, kinds)
        try:
            for reflector in cluster.view.reflectors:
                await reflector.first()
            # Each kind, Kueue and each gang scheduler may not be installed: nothing waits for them.
            for first in (
                cluster.workloads.follower.first,
                *(follower.first for follower in cluster.groups.followers.values()),
                *(kind.cache.follower.first for kind in cluster.jobs),
            ):
                with suppress(ApiError):
                    await first()
        except ApiError as error:
            await server.close()
            raise StoreError(f"cannot read the cluster: {error}") from error
        except BaseException:
            await server.close()
            raise
        return cluster

    def leader(self, store: Store, processes: Processes, saves: Saves) -> "ClusterLeader":
        """Builds the components of the leader, which write through `store`."""
        return ClusterLeader(self, self._on, store, processes, saves)

    async def follow_its_clock(self) -> None:
        """From now on, uses the API server's clock for instants, as the last leader did.

        If the API server does not answer now, its last answer is good enough: clocks drift little.
        """
        with suppress(ApiError):
            await self.server.request(Call(method="GET", path="/version"))
        moved = self.time.correct_own_clock()
        if abs(moved) > _STEP_SECONDS:
            _log.warning("clock.stepped", seconds=round(-moved, 1))

    @property
    def standby_tasks(self) -> Tasks:
        """The root tasks of every replica by name."""
        tasks: dict[str, Task] = {
            **{f"cluster.{number}": reflector.run for number, reflector in enumerate(self.view.reflectors)},
            **{f"events.{reason}": reflector.run for reason, reflector in self._events.reflectors.items()},
            **{f"drills.{reason}": reflector.run for reason, reflector in self._drills.reflectors.items()},
            "keys": self._keys.run,
            "workloads": self.workloads.follower.run,
            **{f"gangs.{version}": follower.run for version, follower in self.groups.followers.items()},
        }
        for kind in self.jobs:
            tasks |= {f"{kind.cache.kind.name}.follow": kind.cache.follower.run, **kind.actions.standby_tasks}
        return tasks

    def _queue_changed(self, names: Collection[JobName]) -> None:
        self.jobs.touched(names)

    def _regrouped(self, group: PodGroup) -> None:
        self.jobs.regrouped(group)

    @property
    def unread(self) -> Mapping[str, int]:
        """The number of objects that cannot be decoded completely, by the plural of their kind."""
        counts = Counter(self.view.unread)
        for kind in self.jobs:
            counts[kind.cache.kind.resource.plural] += len(kind.cache.follower.unread)
        for found in (self._events, self._drills):
            counts[events.EVENTS.plural] += sum(reflector.unread for reflector in found.reflectors.values())
        counts[WORKLOADS.plural] = self.workloads.unread
        counts["podgroups"] = self.groups.unread
        return counts

    @property
    def nodes_version(self) -> int:
        return self.view.nodes_version

    @property
    def node_objects(self) -> Mapping[Host, str]:
        return self.view.node_uids

    def placements(self, name: JobName) -> Mapping[Host, Placement] | None:
        return None if kind_of(name) == STANDALONE else self.jobs.placements(name)

    def granted(
        self, jobs: Sequence[SupervisedJob], noticed: Collection[Host], avoided: Collection[Host]
    ) -> Mapping[JobName, Grant]:
        return self._allocation.granted(jobs, noticed, avoided)

    def machine(self, node: Host) -> Machine:
        return self.view.machine(node)

    def is_there(self, notice: ReclaimNotice) -> bool | None:
        """Whether the subject exists; None if the cluster cannot tell, for example about a machine."""
        subject = notice.subject
        if subject.kind is SubjectKind.NODE:
            uid = self.view.node_uids.get(Host(subject.name))
            if notice.drains:  # Of the Node object or, at the request of an operator, of the machine.
                return False if uid is None else (uid == subject.uid or None)
            return uid == subject.uid if notice.source in API_SOURCES else None
        pod = self.view.pod(subject.uid)
        if pod is None or pod.over:
            return False
        # A pod that is being deleted may stay in the list for as long as its node does not answer.
        return True if pod.deleted_at is None else None

    def node_of(self, pod: Subject) -> Host | None:
        """The node that a pod is bound to; None if the pod is not in the cache, "" if another pod has this uid."""
        seen = self.view.pod(pod.uid)
        if seen is not None and signals.pod_subject(seen) != pod:
            return Host("")
        return Host(seen.node) if seen is not None and seen.node else None

    def gpus(self, name: JobName) -> float | None:
        """The GPUs that each worker of a job requests; None if its request is unknown."""
        request = self.jobs.resource_request(name)
        if request is None:
            return None
        return sum(amount for resource, amount in request.worker.requests.items() if resource.endswith(_GPU)) / 1000


class ClusterLeader:
    """Stores signals and the facts about jobs while this supervisor leads, and carries out decisions.

    Attributes:
        actuator: Carries out decisions about the jobs of operators.
        tasks: The root tasks by name.
    """

    def __init__(
        self, cluster: WatchedCluster, on: ClusterDependencies, store: Store, processes: Processes, saves: Saves
    ) -> None:
        settings, clock, bulkhead = on.settings, on.clock, on.bulkhead
        jobs = JobReconciler(cluster.jobs, store, clock, bulkhead)
        self.actuator = Actuator(
            ActuatorDependencies(
                jobs=cluster.jobs,
                pods=cluster.view.pod_collection,
                store=store,
                report=jobs.in_place,
                may_act=on.may_act,
                connected=processes.hosts,
                clock=clock,
                cluster_now=cluster.time.now,
                bulkhead=bulkhead,
            )
        )
        booster = Booster(
            BoosterDependencies(
                jobs=cluster.jobs,
                workloads=cluster.workloads,
                store=store,
                saves=saves,
                rank_zero=processes.rank_zero,
                may_act=on.may_act,
                policy=BoostPolicy(
                    maximum=settings.kueue_priority_boost_max,
                    step_seconds=settings.kueue_priority_boost_step_seconds,
                    hold_seconds=settings.kueue_priority_boost_hold_seconds,
                    margin_seconds=settings.margin_seconds,
                ),
                clock=clock,
                bulkhead=bulkhead,
            )
        )
        tasks: dict[str, Task] = {
            "cluster.signals": lambda: cluster.signals.run(store),
            "jobs.observe": jobs.run,
            "jobs.requeue": jobs.requeue,
            "jobs.act": self.actuator.run,
            "jobs.boost": booster.run,
        }
        for kind in cluster.jobs:
            tasks |= kind.actions.leader_tasks
        self.tasks: Tasks = tasks


@dataclass(slots=True)
class WriteGuard:
    """Allows the connections of a replica to write while `certain` returns True: before it leads, that is always."""

    certain: Callable[[], bool] = always

    def may_write(self) -> bool:
        return self.certain()


@dataclass(frozen=True, slots=True)
class SupervisorReplica:
    """The components of a replica before it leads.

    `elected` is None without leader election, `events` is None if Kubernetes Events are off. `may_act` returns whether
    no other supervisor can lead now.
    """

    store: KubernetesStore
    cluster: WatchedCluster
    changes: Notifier
    clock: Clock
    elected: ElectedLeadership | None
    may_act: Callable[[], bool]
    events: recorder.EventRecorder | None
    bulkhead: Bulkhead
    guard: WriteGuard

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, clock: Clock, bulkhead: Bulkhead) -> AsyncIterator[Self]:
        """Connects and lists everything; waits for an unavailable API server.

        Raises:
            StoreError: There is no cluster to connect to, it has no such resources, or they may not be read.
            LeadershipError: The lease may not be read.
        """
        kubeconfig = os.environ.get("KUBECONFIG")  # The usual name, without our prefix.
        guard, changes = WriteGuard(), Notifier()
        async with AsyncExitStack() as stack:
            store = await KubernetesStore.open(
                KubernetesStoreOptions(
                    kubeconfig=kubeconfig,
                    namespace=settings.namespace,
                    timeout_seconds=settings.store_timeout_seconds,
                    kinds=RESOURCES,
                    may_write=guard.may_write,
                ),
                clock,
                bulkhead,
            )
            stack.push_async_callback(store.close)
            candidate = None
            if settings.leader_election:
                options = ElectionOptions(
                    kubeconfig=kubeconfig,
                    namespace=settings.namespace,
                    lease=settings.lease_name,
                    seconds=settings.lease_seconds,
                    pod=settings.pod_name,
                )
                candidate = await ElectedLeadership.open(options, clock, store.highest_epoch, bulkhead)
                stack.push_async_callback(candidate.close)
            may_act = candidate.may_act if candidate else always
            people = None
            if settings.cluster_sign_in:
                # Reviews change nothing, so that nothing guards them: also who leads is seen on the page.
                reviewing = await ApiServer.connect(kubeconfig, settings.store_timeout_seconds)
                stack.push_async_callback(reviewing.close)
                people = ReviewedPeople(reviewing, settings.token_audience, clock)
            cluster = await WatchedCluster.open(
                ClusterDependencies(
                    kubeconfig=kubeconfig,
                    settings=settings,
                    clock=clock,
                    store=store,
                    may_act=may_act,
                    may_write=guard.may_write,
                    on_change=changes.notify,
                    bulkhead=bulkhead,
                    people=people,
                )
            )
            stack.push_async_callback(cluster.server.close)
            events = None
            if settings.kubernetes_events:
                server = await ApiServer.connect(kubeconfig, settings.store_timeout_seconds, may_write=guard.may_write)
                stack.push_async_callback(server.close)
                objects = api.ClusterReferenceResolver(
                    store, cluster.view, cluster.placements, cluster.jobs.owner_of, cluster.jobs.is_released
                )
                events = recorder.EventRecorder(
                    server, objects, settings.pod_name or socket.gethostname(), clock, bulkhead
                )
            yield cls(store, cluster, changes, clock, candidate, may_act, events, bulkhead, guard)

    def webhook(
        self,
        settings: Settings,
        ca: Callable[[], str],
        certificate: ServerCertificate | None,
        refusals: Refusals,
        on_review: Reviewed | None,
    ) -> Tasks:
        """The root task of the webhook, if there is one; `ca` returns the CA for new pods."""
        if settings.webhook is None:
            return {}
        nodes = NoticedNodes(
            self.store.snapshot,
            lambda: self.cluster.node_objects,
            lambda: self.cluster.nodes_version,
            settings,
            self.clock.now,
        )

        def injection() -> PodInjection:
            """The present injection for a new pod."""
            return PodInjection(
                address=settings.public_address,
                ca=ca(),
                audience=settings.token_audience,
                keeper_port=settings.keeper_port or None,
                avoid=nodes.now(),
            )

        server = Webhook(
            address=settings.webhook,
            certificate=certificate,
            refusals=refusals,
            injection=injection,
            bulkhead=self.bulkhead,
            on_review=on_review,
        )
        return {"webhook": server.run}

    async def serve(self, tasks: Callable[[], Tasks], stop: Event, beside: Tasks) -> None:
        """Stands by until this replica leads, then runs the leader's tasks; returns when `stop` is set.

        Args:
            tasks: Returns the root tasks of the leader.
            stop: Ends all tasks.
            beside: The root tasks that it runs, leading or not.

        Raises:
            RootTaskEnded: See `run_tasks`; its cause is LeadershipLost if another replica leads now.
        """

        async def lead() -> None:
            epoch = self.store.known_epoch or 1
            if self.elected is not None:
                epoch = await self.elected.election.gained()
            await self.cluster.follow_its_clock()
            self.store.lead(epoch)
            self.guard.certain = self.may_act
            await run_tasks({**tasks(), **(self.elected.leader_tasks if self.elected else {})}, Event())

        candidacy = self.elected.tasks if self.elected else {}
        await run_tasks(
            {"store": self.store.run, **self.cluster.standby_tasks, **candidacy, **beside, "leader": lead}, stop
        )
