"""The actions on TrainingJobs. Each change applies to the present version of an object, or is refused."""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any

import msgspec

from servicekit.failpoints import failpoint
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ApiUnavailableError, ConflictError, NotFoundError
from servicekit.kubernetes.execute import execute
from servicekit.kubernetes.objects import Metadata, ObjectKey
from supervisor.cluster.annotations import EXCLUDED, OURS, STATUS, SUSPENDED_BY
from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Result
from supervisor.jobs import pods
from supervisor.jobs.kind import KindContext, Progress
from supervisor.jobs.observation import STATUS_OF
from supervisor.jobs.trainingjob.discovery import exclusion_command, exclusion_lines
from supervisor.jobs.trainingjob.failpoints import At
from supervisor.jobs.trainingjob.objects import SUSPENDED, JobPhase, TrainingJob
from supervisor.jobs.trainingjob.observe import State, worker_names
from supervisor.jobs.trainingjob.resize import host_lists, resized
from supervisor.jobs.trainingjob.scaleouts import ScaleOuts

_CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)
_MAX_ATTEMPTS = 20
"""Attempts at a change that conflicts: the operator writes a job's status several times a second while it starts."""

_STARTED_OVER: Mapping[str, object] = {
    "phase": JobPhase.CREATED,
    "conditions": [],
    "currentScaler": None,
    "targetWorkers": None,
    "currentWorkers": None,
}
"""The status from which the operator starts a job; it cannot leave Suspended by itself."""

_SUSPENSION: Mapping[str, str] = {SUSPENDED: "true", SUSPENDED_BY: OURS}
_MARKS = frozenset({*_SUSPENSION, STATUS})

Change = Callable[[TrainingJob], Awaitable[TrainingJob]]


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


class TrainingJobActions:
    """Implements `JobActions`."""

    def __init__(self, context: KindContext[TrainingJob]) -> None:
        self._context = context
        self._scale_outs = ScaleOuts(context)
        self._excluded: dict[JobName, tuple[str, frozenset[Host]]] = {}

    @property
    def standby_tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {"scaleout.follow": self._scale_outs.follow}

    @property
    def leader_tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {"scaleout.tidy": self._scale_outs.tidy}

    async def exclude(self, state: State, hosts: Collection[Host]) -> Progress:
        launcher, asked = state.launcher, state.job.spec
        if launcher is None or asked is None:
            return Progress.PENDING
        unlisted = _still_listed(state, launcher)
        written = (launcher.metadata.uid, frozenset(hosts) | unlisted)
        if self._excluded.get(state.name) != written:
            await self._list_without(launcher, asked.launcher.container, written[1])
            self._remember(state.name, written)
        return Progress.SETTLING if unlisted else Progress.IN_PLACE

    async def remove(self, _state: State, excluded: Collection[Pod]) -> None:
        await pods.delete(self._context.cluster.pods, excluded)

    async def suspend(self, state: State) -> Progress:
        """It is in place once the operator reports it and the job has no pods left."""
        if state.job.phase is JobPhase.SUSPENDED and state.job.suspended and not state.pods:
            return Progress.IN_PLACE
        await self._suspend(state, _SUSPENSION)
        return Progress.PENDING

    async def end(self, state: State, result: Result) -> None:
        await self._suspend(state, {**_SUSPENSION, STATUS: STATUS_OF[result]})

    async def resume(self, state: State, workers: int, requested: int) -> Progress:
        """It is checked until the run exists: the operator may overwrite our status with its old one."""
        if state.job.phase is not JobPhase.SUSPENDED:
            return Progress.SETTLING
        if await self._scale_outs.gone(state):
            await self._rewrite_lists(state.job, workers)
            failpoint(At.RUN_LISTED)
            await self._change(state.job, self._start(workers, requested))
            failpoint(At.RUN_STARTED)
        return Progress.PENDING

    async def grow(self, state: State, workers: int, number: int, seconds: float) -> None:
        await self._scale_outs.request(state, workers, number, seconds)

    def growable(self, state: State) -> int:
        return self._scale_outs.growable(state)

    async def _suspend(self, state: State, marks: Mapping[str, str]) -> None:
        """Makes the operator delete all the job's pods, unless the job has succeeded.

        The annotation would change a succeeded job to Suspended, and the next resume would train it again.
        """

        async def mark(job: TrainingJob) -> TrainingJob:
            if job.phase is JobPhase.SUCCEEDED or job.annotations.items() >= marks.items():
                return job
            return await self._context.client.merge(job, {}, metadata={"annotations": marks, **_version(job)})

        if state.launcher is None or not state.launcher.succeeded:
            await self._change(state.job, mark)
            failpoint(At.RUN_SUSPENDED)

    def _start(self, workers: int, requested: int) -> Change:
        """The change that makes the operator start the job with `workers` workers; it continues an interrupted one."""
        client = self._context.client

        async def start(job: TrainingJob) -> TrainingJob:
            if job.phase is not JobPhase.SUSPENDED or job.spec is None:
                return job
            if operations := resized(job, job.spec, workers, requested):
                job = await client.patch(job, operations)
                failpoint(At.RUN_SIZED)
            if job.annotations.keys() & _MARKS:
                freed = dict.fromkeys(_MARKS)
                job = await client.merge(job, {}, metadata={"annotations": freed, **_version(job)})
                failpoint(At.RUN_FREED)
            return await client.merge(job, {"status": _STARTED_OVER}, "status", metadata=_version(job))

        return start

    async def _list_without(self, launcher: Pod, container: str, hosts: Collection[Host]) -> None:
        """Makes a launcher list all of the operator's hosts except these.

        It sets an annotation and, unless a volume exposes that as a file, runs a command in the launcher's container.
        """
        text = exclusion_lines(hosts)
        if launcher.annotations.get(EXCLUDED, "") != text:
            await self._context.cluster.pods.merge(launcher, {}, metadata={"annotations": {EXCLUDED: text}})
            failpoint(At.EXCLUSIONS_SHOWN)
        if EXCLUDED in launcher.shown:
            return
        ran = await execute(self._context.cluster.server, launcher.key, container, exclusion_command(hosts))
        if ran.code:
            raise ApiUnavailableError(
                f"{launcher.key.name} cannot leave hosts out: code {ran.code}, {ran.output.strip()}"
            )
        failpoint(At.EXCLUSIONS_LISTED)

    def _remember(self, name: JobName, written: tuple[str, frozenset[Host]]) -> None:
        """Remembers what was written for a job, and forgets jobs that are gone."""
        jobs = self._context.cluster.snapshot().jobs
        self._excluded = {job: known for job, known in self._excluded.items() if job in jobs}
        self._excluded[name] = written

    async def _rewrite_lists(self, job: TrainingJob, workers: int) -> None:
        """Updates the job's ConfigMap: the operator keeps an existing one, with the hosts of the last run."""
        server = self._context.cluster.server
        maps = ResourceClient(server, _CONFIG_MAPS, lambda data: msgspec.json.decode(data, type=_ConfigMap))
        slots = 1 if job.spec is None else job.spec.slots
        try:
            read = await maps.get(ObjectKey(job.metadata.namespace, f"{job.metadata.name}-config"))
            if changes := host_lists(read.data, worker_names(job, workers), slots):
                await maps.merge(read, {"data": changes})
        except NotFoundError:
            return

    async def _change(self, known: TrainingJob, change: Change) -> None:
        """Applies a change to the present version of the job, and retries it after conflicts."""
        job, uid = known, known.metadata.uid
        for _ in range(_MAX_ATTEMPTS):
            try:
                self._context.jobs.wrote(await change(job))
            except ConflictError:
                job = await self._context.client.get(known.metadata.key)
                if job.metadata.uid != uid:
                    raise NotFoundError("another job has the same name now") from None
            else:
                return
        raise ApiUnavailableError(f"{known.metadata.name} changes faster than it can be changed")


def _version(job: TrainingJob) -> Mapping[str, str]:
    """Makes the API server refuse a change to a newer version."""
    return {"resourceVersion": job.metadata.resource_version}


def _still_listed(state: State, launcher: Pod) -> frozenset[Host]:
    """Excluded hosts that are gone but still in the operator's list.

    The operator does not check its workers while it adds some; Horovod would start processes on hosts that are gone.
    """
    there = {pod.host for pod in state.workers}
    before = launcher.annotations.get(EXCLUDED, "").split()
    return frozenset(Host(name) for name in before if name in state.job.current and name not in there)
