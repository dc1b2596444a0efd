"""What is done to a TrainingJob and its pods: each change made to what is there now, or not at all."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from servicekit.failpoints import failpoint
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, ConflictError, NotFoundError
from servicekit.kubernetes.execute import execute
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host
from supervisor.failpoints import At
from supervisor.jobs.trainingjob.discovery import leave_out, shown
from supervisor.jobs.trainingjob.objects import (
    DIRECTIVE,
    EXCLUDED,
    OURS,
    STATUS,
    SUSPENDED,
    SUSPENDED_BY,
    TIMEOUT,
    JobPhase,
    TrainingJob,
)
from supervisor.jobs.trainingjob.resizing import host_lists, resized
from supervisor.jobs.trainingjob.seen import ObservedJob, worker_names

_CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)
_MAX_ATTEMPTS = 20
"""Of a change that others come between: the operator writes a job's status several times a second while it starts."""

_AT_ONCE = 20
"""Pods that are written to: a job may have thousands."""

_LAST_GRACE_SECONDS = 1
"""For a pod whose machine is gone in a moment anyway."""

_STARTED_OVER: Mapping[str, object] = {
    "phase": JobPhase.CREATED,
    "conditions": [],
    "currentScaler": None,
    "targetWorkers": None,
    "currentWorkers": None,
}
"""The status from which the operator starts a job; it knows no way out of Suspended."""

SUSPENSION: Mapping[str, str] = {SUSPENDED: "true", SUSPENDED_BY: OURS}
TIMED_OUT: Mapping[str, str] = {**SUSPENSION, STATUS: TIMEOUT}


Change = Callable[[TrainingJob], Awaitable[TrainingJob]]


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Changes:
    """To jobs and their pods; every one may be repeated.

    All raise ApiError of one kind or another; NotThereError where the object is gone, so that nothing is left to do.
    """

    server: ApiServer
    jobs: ResourceClient[TrainingJob]
    pods: ResourceClient[Pod]
    wrote: Callable[[TrainingJob], None]

    async def suspend(self, seen: ObservedJob, marks: Mapping[str, str]) -> None:
        """Has the operator let go of all the job's pods; a job that has succeeded stays as it is.

        The annotation would flip such a job to Suspended, and the next resume would train it once more.
        """

        async def marked(job: TrainingJob) -> TrainingJob:
            if job.phase is JobPhase.SUCCEEDED or job.annotations.items() >= marks.items():
                return job
            version = job.metadata.resource_version
            return await self.jobs.merge(job, {}, metadata={"annotations": marks, "resourceVersion": version})

        launcher = seen.launcher
        if launcher is None or not launcher.succeeded:
            await self._changed(seen.job, marked)
            failpoint(At.RUN_SUSPENDED)

    async def resume(self, seen: ObservedJob, workers: int, requested: int) -> None:
        """Has the operator start the job again with so many workers, from wherever an earlier attempt has come to."""

        async def started(job: TrainingJob) -> TrainingJob:
            if job.phase is not JobPhase.SUSPENDED or job.wish is None:
                return job
            if operations := resized(job, job.wish, workers, requested):
                job = await self.jobs.patch(job, operations)
                failpoint(At.RUN_SIZED)
            if job.annotations.keys() & TIMED_OUT.keys():
                freed = dict.fromkeys(TIMED_OUT)
                version = job.metadata.resource_version
                job = await self.jobs.merge(job, {}, metadata={"annotations": freed, "resourceVersion": version})
                failpoint(At.RUN_FREED)
            version = job.metadata.resource_version
            return await self.jobs.merge(
                job, {"status": _STARTED_OVER}, "status", metadata={"resourceVersion": version}
            )

        await self._rewrite_lists(seen.job, workers)
        failpoint(At.RUN_LISTED)
        await self._changed(seen.job, started)
        failpoint(At.RUN_STARTED)

    async def leave_out(self, launcher: Pod, container: str, hosts: Collection[Host]) -> None:
        """Has a launcher list all of the operator's hosts but these.

        By its annotation, and where no volume shows that as a file, by a command in its container.
        """
        text = shown(hosts)
        if launcher.annotations.get(EXCLUDED, "") != text:
            await self.pods.merge(launcher, {}, metadata={"annotations": {EXCLUDED: text}})
            failpoint(At.EXCLUSIONS_SHOWN)
        if EXCLUDED in launcher.shown:
            return
        ran = await execute(self.server, launcher.key, container, leave_out(hosts))
        if ran.code:
            raise ApiUnavailableError(
                f"{launcher.key.name} cannot leave hosts out: code {ran.code}, {ran.said.strip()}"
            )
        failpoint(At.EXCLUSIONS_LISTED)

    async def remove(self, pods: Collection[Pod]) -> None:
        """Deletes just these pods."""
        for pod in pods:
            try:
                await self.pods.delete_unconditionally(pod, _LAST_GRACE_SECONDS)
            except (NotFoundError, ConflictError):
                continue  # Gone, or another one has its name by now.
            failpoint(At.POD_REMOVED)

    async def tell(self, pods: Collection[Pod], text: str) -> str:
        """Shows a directive to the processes of just these pods; returns why not, where that failed for any.

        Nothing is raised: it is for those who have no better way, and a pod that is gone needs none.
        """
        turns, failed = asyncio.Semaphore(_AT_ONCE), list[str]()

        async def told(pod: Pod) -> None:
            async with turns:
                try:
                    await self.pods.merge(pod, {}, metadata={"annotations": {DIRECTIVE: text}})
                except (NotFoundError, ConflictError):
                    return
                except ApiError as error:
                    failed.append(f"{pod.key.name}: {error}")

        async with asyncio.TaskGroup() as group:
            for pod in pods:
                if pod.annotations.get(DIRECTIVE) != text:
                    group.create_task(told(pod))
        return next(iter(failed), "")

    async def _rewrite_lists(self, job: TrainingJob, workers: int) -> None:
        """The operator keeps a ConfigMap that is there, with the hosts of the run before."""
        maps = ResourceClient(self.server, _CONFIG_MAPS, lambda data: msgspec.json.decode(data, type=_ConfigMap))
        slots = 1 if job.wish is None else job.wish.slots
        try:
            read = await maps.get(ObjectKey(job.metadata.namespace, f"{job.metadata.name}-config"))
            if changes := host_lists(read.data, worker_names(job, workers), slots):
                await maps.merge(read, {"data": changes})
        except NotFoundError:
            return

    async def _changed(self, known: TrainingJob, change: Change) -> None:
        """Makes a change to the job as it is now, which others may change at the same time."""
        job, uid = known, known.metadata.uid
        for _ in range(_MAX_ATTEMPTS):
            try:
                self.wrote(await change(job))
            except ConflictError:
                job = await self.jobs.get(known.metadata.key)
                if job.metadata.uid != uid:
                    raise NotFoundError("another job has its name by now") from None
            else:
                return
        raise ApiUnavailableError(f"{known.metadata.name} changes faster than it can be changed")
