"""The ScaleOuts that ask the operator for more workers, one at a time per job; they are deleted when they are done.

A ScaleOut is the only record of an attempt, so it stays while the decision asks for the attempt, and is not made twice.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress

import msgspec
import structlog

from servicekit.failpoints import failpoint
from servicekit.faults import Fault
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError, RefusedError
from servicekit.kubernetes.objects import ObjectKey, OwnedMetadata, UnreadObject
from servicekit.kubernetes.reflector import Reflector
from servicekit.reconcile import reconcile
from servicekit.wakeup import Wakeup
from supervisor.cluster.annotations import OURS
from supervisor.domain.ids import JobName, cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.jobs.kind import KindContext
from supervisor.jobs.trainingjob.failpoints import At
from supervisor.jobs.trainingjob.growth import growable
from supervisor.jobs.trainingjob.objects import KIND, SCALE_OUT, TRAINING_JOBS, TrainingJob
from supervisor.jobs.trainingjob.observe import State

SCALE_OUTS = Resource(
    group=TRAINING_JOBS.group, version=TRAINING_JOBS.version, kind="ScaleOut", plural="scaleouts", namespaced=True
)
_LABELS = {"app.kubernetes.io/managed-by": OURS}
_SELECTOR = ",".join(f"{name}={value}" for name, value in _LABELS.items())

_LOOK_SECONDS = 1.0
"""The interval of checks whether an existing ScaleOut is still wanted."""

_OPERATORS_SHARE = 0.8
"""The operator's part of an attempt's time, so that it gives up and cleans up before the supervisor does."""

_NOT_BEGUN = ("", "Created")
_OVER = ("ScaleSucceeded", "ScaleFailed")

_log = structlog.get_logger()


class _Selector(msgspec.Struct, frozen=True):
    name: str = ""


class _Spec(msgspec.Struct, frozen=True):
    selector: _Selector = _Selector()


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class ScaleOut(msgspec.Struct, frozen=True):
    """A ScaleOut that the supervisor made."""

    metadata: OwnedMetadata
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def job(self) -> JobName:
        """The job that should grow."""
        return cluster_job(self.metadata.namespace, KIND, self.spec.selector.name)

    @property
    def owner(self) -> str:
        """The uid of that job."""
        return next((owner.uid for owner in self.metadata.owner_references), "")

    @property
    def begun(self) -> bool:
        """Whether the operator has started with it."""
        return self.status.phase not in _NOT_BEGUN

    @property
    def over(self) -> bool:
        """Whether the operator has finished it."""
        return self.status.phase in _OVER


def scale_out_name(uid: str, number: int) -> str:
    """The name of an attempt's ScaleOut, unique in the cluster: the operator counts pods by it in every namespace."""
    return f"grow-{uid}-{number}"


class ScaleOuts:
    """The ScaleOuts of the supervisor: `follow` watches them, and the leader's `tidy` deletes finished ones."""

    def __init__(self, context: KindContext[TrainingJob]) -> None:
        self._context = context
        self._cache: Cache[ScaleOut] = Cache(SCALE_OUTS.plural, self._moved, context.cluster.bulkhead)
        selection = Selection(namespace=context.cluster.namespace, labels=_SELECTOR)
        self._client = ResourceClient(
            context.cluster.server, SCALE_OUTS, lambda data: msgspec.json.decode(data, type=ScaleOut), selection
        )
        self._reflector = Reflector(
            self._client, self._cache, context.cluster.clock, optional=True, on_synced=context.cluster.on_change
        )
        self._wakeup = Wakeup()
        self._tidy_fault = Fault(f"deletion of {SCALE_OUTS.plural}", context.cluster.clock)

    def growable(self, state: State) -> int:
        """How many workers the operator can be asked for; none while a ScaleOut of ours may exist."""
        ours = _of(state, self._cache.objects.values()) or _unread_of(state, self._cache.unread.values())
        if ours or not self._reflector.synced:
            return 0
        return growable(state, namesakes=self._context.jobs.namesakes(state.name))

    async def request(self, state: State, workers: int, number: int, seconds: float) -> None:
        """Requests the missing workers, unless that was done already or would do harm now.

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
            self._cache.record_write(made)
            failpoint(At.GROWTH_ASKED)

    async def gone(self, state: State) -> bool:
        """Deletes the ScaleOuts of a job that is about to resume; returns whether there was none.

        The operator would continue one that the suspension interrupted, and delete workers of the new run.

        Raises:
            ApiError: The ScaleOuts cannot be listed or deleted.
        """
        try:
            listed = await self._client.list()
        except (NotFoundError, RefusedError):
            return True  # They are not defined, or we have no right to make one.
        ours: list[ScaleOut | UnreadObject] = [*_of(state, listed.objects), *_unread_of(state, listed.unread)]
        for one in ours:
            await self._delete(one)
        return not ours

    async def follow(self) -> None:
        """Root task: watches the ScaleOuts, also if they are defined later."""
        await self._reflector.run()

    async def tidy(self) -> None:
        """Root task: deletes finished ScaleOuts."""
        await reconcile("scaleouts", self.once, self._context.cluster.bulkhead, wakeup=self._wakeup)

    async def once(self) -> float | None:
        """Deletes finished ScaleOuts once; returns the seconds until the next look, None while there are none."""
        if self._context.cluster.may_act():
            try:
                for one in list(self._cache.objects.values()):
                    with self._context.cluster.bulkhead.guard("scaleouts", one.metadata.key, passes=ApiError):
                        await self._delete_if_done_with(one)
            except ApiError as error:
                self._tidy_fault.failed(str(error))
            else:
                self._tidy_fault.recovered()
        return _LOOK_SECONDS if self._cache.objects else None

    async def _delete_if_done_with(self, one: ScaleOut) -> None:
        job = self._context.cluster.snapshot().jobs.get(one.job)
        if _done_with(one, self._context.jobs.state(one.job), job):
            await self._delete(one)

    async def _delete(self, one: ScaleOut | UnreadObject) -> None:
        try:
            # A conditional deletion fails if the operator has just started with it, as its pods would stay behind.
            if isinstance(one, ScaleOut) and one.begun:
                await self._client.delete_unconditionally(one)
            else:
                await self._client.delete(one)
        except ConflictError:
            return
        except NotFoundError:
            pass
        self._cache.record_deletion(one)
        failpoint(At.GROWTH_TIDIED)

    def _moved(self, _before: ScaleOut | None, _after: ScaleOut | None) -> None:
        self._wakeup.set()
        self._context.cluster.on_change()


def _of(state: State, scale_outs: Collection[ScaleOut]) -> Sequence[ScaleOut]:
    """The ScaleOuts of a job.

    One of another namespace may name the job's uid as its owner. If it counted, its finalizer would keep the job from
    growing, and from every resume.
    """
    return [one for one in scale_outs if (one.job, one.owner) == (state.name, state.job.metadata.uid)]


def _unread_of(state: State, outlines: Collection[UnreadObject]) -> Sequence[UnreadObject]:
    """Those of a job that do not decode, by their names."""
    prefix = scale_out_name(state.job.metadata.uid, 0).removesuffix("0")
    namespace = state.job.metadata.namespace
    keys = [(one, one.metadata.key) for one in outlines]
    return [one for one, key in keys if key.namespace == namespace and key.name.startswith(prefix)]


def _done_with(one: ScaleOut, state: State | None, job: SupervisedJob | None) -> bool:
    """Whether a ScaleOut can be deleted.

    One that the operator has started with stays while the run does, as its pods would be left behind. After the run it
    must go, as the next run would continue it. Kubernetes deletes it together with its job.
    """
    if state is not None and not (state.launcher is not None and state.launcher.running):
        return True
    growth = None if job is None or job.uid != one.owner else job.decision.growing
    asked = growth is not None and scale_out_name(one.owner, growth.number) == one.metadata.name
    return not asked and (one.over or not one.begun)
