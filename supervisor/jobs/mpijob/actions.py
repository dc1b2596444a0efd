"""What is done to an MPIJob: exclusion by a label of its pods, the rest by its spec."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

import msgspec

from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey, OwnedMetadata
from supervisor.cluster.annotations import REQUESTED, STATUS, SUSPENDED_BY
from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host
from supervisor.domain.job import Result
from supervisor.jobs import pods
from supervisor.jobs.kind import KindContext, Progress, Role
from supervisor.jobs.mpijob.objects import BATCH_JOBS, EXCLUDED, EXCLUDED_PODS, ROLE, Condition, MpiJob
from supervisor.jobs.mpijob.observe import State
from supervisor.jobs.observation import STATUS_OF, requested_workers
from supervisor.jobs.suspension import SUSPENSION

_CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)
_CONCURRENCY = 20
"""Pods that are labelled at once: a job may have thousands."""


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


class _JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    start_time: str | None = None


class _LauncherJob(msgspec.Struct, frozen=True):
    metadata: OwnedMetadata
    status: _JobStatus = _JobStatus()


class MpiJobActions:
    """See `supervisor.jobs.kind.JobActions`."""

    standby_tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = {}
    leader_tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = {}

    def __init__(self, context: KindContext[MpiJob]) -> None:
        self._context = context
        server = context.cluster.server
        self._config_maps = ResourceClient(
            server, _CONFIG_MAPS, lambda data: msgspec.json.decode(data, type=_ConfigMap)
        )
        self._launcher_jobs = ResourceClient(
            server, BATCH_JOBS, lambda data: msgspec.json.decode(data, type=_LauncherJob)
        )

    async def exclude(self, state: State, hosts: Collection[Host]) -> Progress:
        """Looked at again as long as hosts are excluded: a replacement has the name of the pod before it."""
        launcher = state.launcher
        if launcher is None:
            return Progress.PENDING
        await self._label(state, hosts)
        text = _excluded_pods(state, hosts)
        if launcher.annotations.get(EXCLUDED_PODS, "") != text:
            if not await self._is_listed_so(state, hosts):
                return Progress.PENDING
            await self._context.cluster.pods.merge(launcher, {}, metadata={"annotations": {EXCLUDED_PODS: text}})
        return Progress.SETTLING if hosts else Progress.IN_PLACE

    async def remove(self, _state: State, excluded: Collection[Pod]) -> None:
        await pods.delete(self._context.cluster.pods, excluded)

    async def suspend(self, state: State) -> Progress:
        job, launcher = state.job, state.launcher
        if not job.suspended or not job.annotations.items() >= SUSPENSION.items():
            if launcher is None or not launcher.succeeded:
                await self._suspend(job, SUSPENSION)
            return Progress.PENDING
        if not job.has(Condition.SUSPENDED):
            return Progress.PENDING
        # Where its policy cleans up running pods alone, the operator leaves those of workers that have failed.
        await pods.delete(
            self._context.cluster.pods, [pod for pod in state.workers if pod.over and pod.deleted_at is None]
        )
        return Progress.PENDING if _has_pods(state) else Progress.IN_PLACE

    async def resume(self, state: State, workers: int, requested: int) -> Progress:
        """Not before all pods are gone: a launcher would start without its workers, whose names are still taken."""
        job = state.job
        if not job.suspended or job.spec is None:
            return Progress.IN_PLACE
        if _has_pods(state):
            return Progress.PENDING
        if job.spec.has_deadline:
            await self._clear_start(job)
        annotations = {SUSPENDED_BY: None, STATUS: None, REQUESTED: None if workers == requested else str(requested)}
        spec = {"runPolicy": {"suspend": False}, **_replicas(workers)}
        await self._merge(job, spec, annotations)
        return Progress.IN_PLACE

    async def grow(self, state: State, workers: int, _number: int, _seconds: float) -> None:
        """Takes nothing back: workers that no node has room for join when one has."""
        job = state.job
        if job.spec is None or job.spec.replicas >= workers:
            return
        requested = requested_workers(job.annotations, job.spec.replicas)
        await self._merge(job, _replicas(workers), {REQUESTED: None if workers >= requested else str(requested)})

    async def end(self, state: State, result: Result) -> None:
        marks = {**SUSPENSION, STATUS: STATUS_OF[result]}
        if not state.job.suspended or not state.job.annotations.items() >= marks.items():
            await self._suspend(state.job, marks)

    def growable(self, state: State) -> int:
        job, asked = state.job, state.job.spec
        if asked is None or job.suspended or not asked.discovers_hosts or REQUESTED not in job.annotations:
            return 0
        if len(state.workers) != asked.replicas or not all(pod.running for pod in state.workers):
            return 0
        return requested_workers(job.annotations, asked.replicas) - asked.replicas

    async def _suspend(self, job: MpiJob, marks: Mapping[str, str]) -> None:
        # Its size stays as it is: the operator deletes those pods alone that it would make.
        await self._merge(job, {"runPolicy": {"suspend": True}}, marks)

    async def _merge(self, job: MpiJob, spec: Mapping[str, object], annotations: Mapping[str, str | None]) -> None:
        merged = await self._context.client.merge(job, {"spec": spec}, metadata={"annotations": annotations})
        self._context.jobs.wrote(merged)

    async def _clear_start(self, job: MpiJob) -> None:
        """The launcher's Job would be over its deadline at once, which is counted from its first start."""
        key = ObjectKey(job.metadata.namespace, f"{job.metadata.name}-launcher")
        try:
            launcher = await self._launcher_jobs.get(key)
        except NotFoundError:
            return
        owned = any(owner.uid == job.metadata.uid for owner in launcher.metadata.owner_references)
        if owned and launcher.status.start_time is not None:
            await self._launcher_jobs.merge(launcher, {"status": {"startTime": None}}, "status")

    async def _label(self, state: State, hosts: Collection[Host]) -> None:
        turns = asyncio.Semaphore(_CONCURRENCY)

        async def label(pod: Pod, role: str) -> None:
            async with turns:
                try:
                    await self._context.cluster.pods.merge(pod, {}, metadata={"labels": {ROLE: role}})
                except (NotFoundError, ConflictError):
                    return  # Gone, or replaced by one that is listed.

        roles = [(pod, EXCLUDED if pod.host in hosts else str(Role.WORKER)) for pod in state.workers]
        changes = [label(pod, role) for pod, role in roles if pod.labels.get(ROLE) != role]
        for result in await asyncio.gather(*changes, return_exceptions=True):
            if result is not None:
                raise result

    async def _is_listed_so(self, state: State, hosts: Collection[Host]) -> bool:
        """Whether the operator has rewritten its list of hosts; its own requests are limited to five a second."""
        name = state.job.metadata.name
        read = await self._config_maps.get(ObjectKey(state.job.metadata.namespace, f"{name}-config"))
        lines = read.data.get("discover_hosts.sh", "").splitlines()
        listed = {line.removeprefix("echo ").partition(".")[0] for line in lines if line.startswith("echo ")}
        wanted = {pod.host for pod in state.workers if pod.running and pod.host not in hosts}
        return wanted <= listed and not any(host in listed for host in hosts)


def _excluded_pods(state: State, hosts: Collection[Host]) -> str:
    excluded = (pod for pod in state.workers if pod.host in hosts)
    return "".join(sorted(f"{pod.key.name} {pod.metadata.uid}\n" for pod in excluded))


def _has_pods(state: State) -> bool:
    """Whether any pod is left that could run, or whose name is taken; those of failed launchers stay for their logs."""
    return bool(state.workers) or any(not pod.over or pod.deleted_at is not None for pod in state.pods)


def _replicas(workers: int) -> Mapping[str, object]:
    return {"mpiReplicaSpecs": {"Worker": {"replicas": workers}}}
