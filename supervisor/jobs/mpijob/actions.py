"""Acts on MPIJobs: a label of its pods excludes workers, and its spec suspends and resizes it."""

from collections.abc import Collection

import msgspec

from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey, OwnedMetadata
from supervisor.domain.ids import Host
from supervisor.jobs.kind import ActionProgress, JobState, KindContext, PodRole
from supervisor.jobs.mpijob.objects import DISCOVERY, EXCLUDED, EXCLUDED_PODS, ROLE, SHAPE, MpiJob
from supervisor.jobs.observation import SUSPENSION
from supervisor.jobs.pods import delete_pods, write_metadata
from supervisor.jobs.replicated.actions import ReplicatedJobActions, SpecMerger, only_logs_left
from supervisor.jobs.replicated.kind import resized_role
from supervisor.jobs.replicated.objects import JobCondition

_CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)
BATCH_JOBS = Resource(group="batch", version="v1", kind="Job", plural="jobs", namespaced=True)


class _HostsConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


class _LauncherJobStatus(msgspec.Struct, frozen=True, rename="camel"):
    start_time: str | None = None


class _LauncherJob(msgspec.Struct, frozen=True):
    metadata: OwnedMetadata
    status: _LauncherJobStatus = _LauncherJobStatus()


def _released(state: JobState[MpiJob]) -> bool:
    """Whether no pod is left that could run, or whose name is taken; those of failed launchers stay for their logs."""
    return not state.workers and only_logs_left(state)


class MpiJobActions(ReplicatedJobActions[MpiJob]):
    """Implements `JobActions`."""

    def __init__(self, context: KindContext[MpiJob]) -> None:
        size = resized_role(SHAPE)
        writer = SpecMerger(context=context, size=size, policy="runPolicy", before_start=self._clear_start)
        super().__init__(context, writer, _released)
        self._config_maps = ResourceClient(
            context.cluster.server, _CONFIG_MAPS, msgspec.json.Decoder(_HostsConfigMap).decode
        )
        self._launcher_jobs = ResourceClient(
            context.cluster.server, BATCH_JOBS, msgspec.json.Decoder(_LauncherJob).decode
        )

    async def exclude(self, state: JobState[MpiJob], hosts: Collection[Host]) -> ActionProgress:
        """Excludes hosts as long as there are any, as a replacement has the name of the pod before it."""
        launcher, client = state.launcher, self.context.cluster.pods
        if launcher is None:
            return ActionProgress.PENDING
        roles = [(pod, EXCLUDED if pod.host in hosts else str(PodRole.WORKER)) for pod in state.workers]
        labels = [(pod, {"labels": {ROLE: role}}) for pod, role in roles if pod.labels.get(ROLE) != role]
        for _, error in await write_metadata(client, labels):
            raise error
        excluded = (pod for pod in state.workers if pod.host in hosts)
        text = "".join(sorted(f"{pod.key.name} {pod.metadata.uid}\n" for pod in excluded))
        if launcher.annotations.get(EXCLUDED_PODS, "") != text:
            if not await self._is_listed_so(state, hosts):
                return ActionProgress.PENDING
            await client.merge(launcher, {}, metadata={"annotations": {EXCLUDED_PODS: text}})
        return ActionProgress.SETTLING if hosts else ActionProgress.IN_PLACE

    async def suspend(self, state: JobState[MpiJob]) -> ActionProgress:
        job, launcher = state.job, state.launcher
        if not job.suspended or not job.annotations.items() >= SUSPENSION.items():
            if launcher is None or not launcher.succeeded:
                await self.writer.suspend(job, SUSPENSION)
            return ActionProgress.PENDING
        if JobCondition.SUSPENDED not in job.conditions:
            return ActionProgress.PENDING
        # Where its policy cleans up running pods alone, the operator leaves those of workers that have failed.
        ended = [pod for pod in state.workers if pod.over and pod.deleted_at is None]
        await delete_pods(self.context.cluster.pods, ended)
        return ActionProgress.IN_PLACE if self.is_released(state) else ActionProgress.PENDING

    async def _clear_start(self, job: MpiJob) -> None:
        """Clears the first start of the launcher's Job: it would be over its deadline at once, which counts from it."""
        if job.spec is None or not job.spec.has_deadline:
            return
        key = ObjectKey(job.metadata.namespace, f"{job.metadata.name}-launcher")
        try:
            launcher = await self._launcher_jobs.get(key)
        except NotFoundError:
            return
        owned = any(owner.uid == job.metadata.uid for owner in launcher.metadata.owner_references)
        if owned and launcher.status.start_time is not None:
            await self._launcher_jobs.merge(launcher, {"status": {"startTime": None}}, "status")

    async def _is_listed_so(self, state: JobState[MpiJob], hosts: Collection[Host]) -> bool:
        """Whether the operator has rewritten its list of hosts; its own requests are limited to five a second."""
        name = state.job.metadata.name
        read = await self._config_maps.get(ObjectKey(state.job.metadata.namespace, f"{name}-config"))
        lines = read.data.get(DISCOVERY, "").splitlines()
        listed = {line.removeprefix("echo ").partition(".")[0] for line in lines if line.startswith("echo ")}
        wanted = {pod.host for pod in state.workers if pod.running and pod.host not in hosts}
        return wanted <= listed and not any(host in listed for host in hosts)
