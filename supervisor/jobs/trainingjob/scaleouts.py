"""Asks the operator for more workers by ScaleOuts, one at a time per job, and deletes those that are done.

A ScaleOut is the only record of an attempt, so it stays while the decision asks for the attempt, and is not made twice.
"""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import structlog

from servicekit.bounds import whole
from servicekit.failpoints import failpoint
from servicekit.faults import Fault
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError, RefusedError
from servicekit.kubernetes.follower import Follower
from servicekit.kubernetes.objects import ObjectKey, OwnedMetadata, UnreadObject
from servicekit.reconcile import Wakeup, reconcile
from supervisor.cluster.annotations import OURS, REQUESTED
from supervisor.domain.ids import JobName, cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.jobs.annotated import requested_workers
from supervisor.jobs.kind import JobState, KindContext
from supervisor.jobs.trainingjob.objects import KIND, SCALE_OUT, TRAINING_JOBS, JobPhase, TrainingJob, TrainingJobSpec
from supervisor.jobs.trainingjob.objects import TrainingJobFailpoint as At

SCALE_OUTS = Resource(
    group=TRAINING_JOBS.group, version=TRAINING_JOBS.version, kind="ScaleOut", plural="scaleouts", namespaced=True
)
_LABELS = {"app.kubernetes.io/managed-by": OURS}
_SELECTOR = ",".join(f"{name}={value}" for name, value in _LABELS.items())

_LOOK_SECONDS = 1.0
"""The interval of checks whether an existing ScaleOut is still wanted."""

_OPERATORS_SHARE = 0.8
"""The operator's part of an attempt's time, so that it gives up and cleans up before the supervisor does."""

_DISCOVERY = "discover_hosts.sh"
_MOST = re.compile(r"(?<![\w-])(?:--max-np|--max-num-proc)[ =]+([^-]*)")
_LARGEST = 10**18
_SIZE = re.compile(r"\$\{?workers\b")

_NOT_BEGUN = ("", "Created")
_OVER = ("ScaleSucceeded", "ScaleFailed")

_log = structlog.get_logger()


class _ScaleOutSelector(msgspec.Struct, frozen=True):
    name: str = ""


class _ScaleOutSpec(msgspec.Struct, frozen=True):
    selector: _ScaleOutSelector = _ScaleOutSelector()


class _ScaleOutStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class ScaleOut(msgspec.Struct, frozen=True):
    """A ScaleOut that the supervisor made."""

    metadata: OwnedMetadata
    spec: _ScaleOutSpec = _ScaleOutSpec()
    status: _ScaleOutStatus = _ScaleOutStatus()

    @property
    def job(self) -> tuple[JobName, str]:
        """The name of the job that should grow, and the uid of its owner, which is that job's if it is our own."""
        uid = next((owner.uid for owner in self.metadata.owner_references), "")
        return cluster_job(self.metadata.namespace, KIND, self.spec.selector.name), uid


def scale_out_name(uid: str, number: int) -> str:
    """The name of an attempt's ScaleOut, unique in the cluster: the operator counts pods by it in every namespace."""
    return f"grow-{uid}-{number}"


class ScaleOuts:
    """The supervisor's ScaleOuts. The `follower` watches them, even if their CRD is installed later.

    The root task `tidy` deletes finished ones.
    """

    def __init__(self, context: KindContext[TrainingJob]) -> None:
        self._context = context
        cluster = context.cluster
        self._client = ResourceClient(cluster.server, SCALE_OUTS, lambda data: msgspec.json.decode(data, type=ScaleOut))
        self.follower = Follower(
            self._client,
            self._moved,
            cluster.clock,
            cluster.bulkhead,
            namespaces=cluster.namespaces,
            labels=_SELECTOR,
            on_synced=cluster.on_change,
        )
        self._wakeup = Wakeup()
        self.tidy = partial(reconcile, "scaleouts", self.once, context.cluster.bulkhead, wakeup=self._wakeup)
        self._tidy_fault = Fault(f"deletion of {SCALE_OUTS.plural}", context.cluster.clock)

    def growable(self, state: JobState[TrainingJob]) -> int:
        """How many workers the supervisor can request from the operator; none while a ScaleOut of ours may exist."""
        ours = _of(state, self.follower.objects, self.follower.unread)
        if ours or not self.follower.synced:
            return 0
        return growable(state, namesakes=self._context.namesakes(state.name))

    async def request(self, state: JobState[TrainingJob], workers: int, number: int, seconds: float) -> None:
        """Requests the missing workers, unless it has done so already or it would do harm now.

        Args:
            state: The job.
            workers: The wanted size of the run.
            number: The number of the attempt.
            seconds: The time that is left for it.

        Raises:
            ApiError: The request failed.
        """
        job = state.job.metadata
        name = scale_out_name(job.uid, number)
        count = min(self.growable(state), workers - len(state.workers))
        if count <= 0 or any(pod.labels.get(SCALE_OUT) == name for pod in state.pods):
            return
        owner = {
            "apiVersion": TRAINING_JOBS.api_version,
            "kind": TRAINING_JOBS.kind,
            "name": job.name,
            "uid": job.uid,
            "controller": True,
        }
        spec = {
            "selector": {"name": job.name},
            "toAdd": {"count": count},
            "timeout": max(1, int(seconds * _OPERATORS_SHARE)),
        }
        with suppress(ConflictError):  # It was made before a restart of the supervisor.
            key = ObjectKey(job.namespace, name)
            made = await self._client.create(key, {"spec": spec}, labels=_LABELS, ownerReferences=[owner])
            _log.info("trainingjob.growth_asked", job=state.name, count=count, scale_out=name)
            self.follower.record_write(made)
            failpoint(At.GROWTH_ASKED)

    async def gone(self, state: JobState[TrainingJob]) -> bool:
        """Deletes the ScaleOuts of a job that is about to resume; returns whether there was none.

        The operator would continue one that the suspension interrupted, and delete workers of the new run.

        Raises:
            ApiError: The ScaleOuts cannot be listed or deleted.
        """
        own = Selection(namespace=state.job.metadata.namespace, labels=_SELECTOR)
        try:
            listed = await self._client.selecting(own).list()
        except (NotFoundError, RefusedError):
            return True  # They are not defined, or we have no right to make one.
        ours = _of(state, listed.objects, listed.unread)
        for one in ours:
            await self._delete(one)
        return not ours

    async def once(self) -> float | None:
        """Deletes finished ScaleOuts; returns the seconds until the next check, None while there are no ScaleOuts."""
        if self._context.cluster.may_act():
            try:
                for one in self.follower.objects:
                    with self._context.cluster.bulkhead.guard("scaleouts", one.metadata.key, passes=ApiError):
                        job = self._context.cluster.snapshot().jobs.get(one.job[0])
                        if _done_with(one, self._context.state(one.job[0]), job):
                            await self._delete(one)
            except ApiError as error:
                self._tidy_fault.failed(str(error))
            else:
                self._tidy_fault.recovered()
        return _LOOK_SECONDS if self.follower.objects else None

    async def _delete(self, one: ScaleOut | UnreadObject) -> None:
        try:
            # A conditional deletion fails if the operator has just started with it, as its pods would stay behind.
            if isinstance(one, ScaleOut) and one.status.phase not in _NOT_BEGUN:
                await self._client.delete_unconditionally(one)
            else:
                await self._client.delete(one)
        except ConflictError:
            return
        except NotFoundError:
            pass
        self.follower.record_deletion(one)
        failpoint(At.GROWTH_TIDIED)

    def _moved(self, _before: ScaleOut | None, _after: ScaleOut | None) -> None:
        self._wakeup.set()
        self._context.cluster.on_change()


def _of(
    state: JobState[TrainingJob], scale_outs: Collection[ScaleOut], unread: Collection[UnreadObject]
) -> Sequence[ScaleOut | UnreadObject]:
    """The ScaleOuts of a job. The names tell whose those are that cannot be decoded.

    One of another namespace may name the job's uid as its owner. If it counted, its finalizer would keep the job from
    growing, and from every resume.
    """
    job = state.job.metadata
    prefix = scale_out_name(job.uid, 0).removesuffix("0")
    read = [one for one in scale_outs if one.job == (state.name, job.uid)]
    keys = [(one, one.metadata.key) for one in unread]
    return [*read, *(one for one, key in keys if key.namespace == job.namespace and key.name.startswith(prefix))]


def _done_with(one: ScaleOut, state: JobState[TrainingJob] | None, job: SupervisedJob | None) -> bool:
    """Whether a ScaleOut can be deleted.

    One that the operator has started with stays while the run does, as its pods would be left behind. After the run it
    must go, as the next run would continue it. Kubernetes deletes it together with its job.
    """
    if state is not None and not (state.launcher is not None and state.launcher.running):
        return True
    _, uid = one.job
    growth = None if job is None or job.uid != uid else job.decision.growing
    asked = growth is not None and scale_out_name(uid, growth.number) == one.metadata.name
    return not asked and one.status.phase in (*_OVER, *_NOT_BEGUN)


def growable(state: JobState[TrainingJob], *, namesakes: bool) -> int:
    """How many workers the operator can add now without harm to a job that was resumed with fewer; none in doubt.

    A failed ScaleOut deletes the pods that it should have made, by name and in every namespace. Its names follow the
    highest of the job's targets, so it could delete pods of another job with these names.

    Args:
        state: The job.
        namesakes: Whether a job in another namespace has the same name.
    """
    job, asked = state.job, state.job.spec
    if asked is None or REQUESTED not in job.annotations or job.phase is not JobPhase.RUNNING:
        return 0
    if namesakes or job.suspended or job.deleted or len(job.targets) < asked.replicas:
        return 0  # With fewer targets than replicas, a user has scaled it in.
    # All workers must run, be in the operator's list, and have no number above its targets'.
    names = {pod.key.name for pod in state.workers}
    if not names or names != job.current or not all(pod.running for pod in state.workers):
        return 0
    prefix = f"{job.metadata.name}-worker-"
    numbers, targets = (
        [-1 if (number := whole(name.removeprefix(prefix), _LARGEST)) is None else number for name in found]
        for found in (names, job.targets)
    )
    if max(numbers) > max(targets, default=-1):
        return 0
    requested = requested_workers(job.annotations, asked.replicas)
    return max(0, requested - len(job.targets)) if _takes(asked, requested) else 0


def _takes(asked: TrainingJobSpec, requested: int) -> bool:
    """Whether the launcher's command discovers hosts while it runs, and can use that many."""
    command = asked.launcher.command
    most = _MOST.search(command)
    if _DISCOVERY not in command or (most is not None and _SIZE.search(most[1])):
        return False
    written = most[1].split() if most is not None else []
    if not written or not written[0].isdecimal():
        return True
    # A number that is too long to be read is too large to be a bound.
    bound = whole(written[0], _LARGEST)
    return bound is None or bound >= requested * asked.slots
