"""Jobs of one kind under an operator, on nodes that kwok simulates, as their watches show them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from benchmarks.harness.cluster import run_for_each
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.objects import Object, ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from simulator.cloud.process import TooLate
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until
from trainingjob_operator.api import PODS, TRAINING_JOBS, Condition, Meta, Pod

_PYTORCH_JOBS = Resource(group="kubeflow.org", version="v1", kind="PyTorchJob", plural="pytorchjobs", namespaced=True)
_REQUEST_SECONDS = 30.0


class _OperatedStatus(msgspec.Struct, frozen=True):
    conditions: list[Condition] | None = None


class _WatchedJob(msgspec.Struct, frozen=True):
    """A job of either kind; both have the condition Running."""

    metadata: Meta
    status: _OperatedStatus = _OperatedStatus()

    @property
    def running(self) -> bool:
        conditions = self.status.conditions or ()
        return any((one.type, one.status) == ("Running", "True") for one in conditions)


@dataclass(frozen=True, slots=True)
class OperatedKind:
    """A kind of job, and the spec of one that has a first pod and a number of workers."""

    resource: Resource
    spec: Callable[[int], Mapping[str, Any]]


def _training_job(workers: int) -> Mapping[str, Any]:
    replicas = {
        "launcher": {"replicas": 1, "template": _template("et")},
        "worker": {"replicas": workers, "restartPolicy": "OnFailure", "template": _template("et")},
    }
    return {"restartPolicy": "OnFailure", "cleanPodPolicy": "Running", "etReplicaSpecs": replicas}


def _pytorch_job(workers: int) -> Mapping[str, Any]:
    replicas = {
        role: {"replicas": count, "restartPolicy": "OnFailure", "template": _template("pytorch")}
        for role, count in (("Master", 1), ("Worker", workers))
    }
    return {"runPolicy": {"cleanPodPolicy": "Running"}, "pytorchReplicaSpecs": replicas}


def _template(container: str) -> Mapping[str, Any]:
    variables = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "8", "PYTHONUNBUFFERED": "1"}
    env = [{"name": name, "value": value} for name, value in variables.items()]
    one = {"name": container, "image": "registry.example.com/training/trainer:2026.1", "env": env}
    return {"spec": {"containers": [one]}}


TRAINING_JOB = OperatedKind(TRAINING_JOBS, _training_job)
PYTORCH_JOB = OperatedKind(_PYTORCH_JOBS, _pytorch_job)


class OperatedJobs:
    """The jobs of one kind in a namespace of their own. Created by `watching_jobs()`.

    Attributes:
        running: The names of the jobs whose status says that they run.
        created: When each pod was first seen (CLOCK_MONOTONIC), by its uid, also of pods that are gone.
    """

    def __init__(self, api: Api, server: ApiServer, kind: OperatedKind, namespace: str) -> None:
        self.running: set[str] = set()
        self.created: dict[str, float] = {}
        self._running_pods: set[str] = set()
        self._api, self._kind, self._namespace = api, kind, namespace
        self._changed = asyncio.Event()
        clock = Clock()
        bulkhead = Bulkhead(clock)
        selection = Selection(namespace=namespace)
        jobs = ResourceClient(server, kind.resource, partial(msgspec.json.decode, type=_WatchedJob), selection)
        pods = ResourceClient(server, PODS, partial(msgspec.json.decode, type=Pod), selection)
        self._jobs: Cache[_WatchedJob] = Cache("jobs", self._job_changed, bulkhead)
        self._pods: Cache[Pod] = Cache("pods", self._pod_changed, bulkhead)
        self.reflectors = (Reflector(jobs, self._jobs, clock), Reflector(pods, self._pods, clock))

    @property
    def pods(self) -> int:
        """The number of pods."""
        return len(self._pods.objects)

    @property
    def running_pods(self) -> int:
        """The number of pods that run."""
        return len(self._running_pods)

    async def submit(self, names: Iterable[str], workers: int) -> None:
        """Create jobs."""
        resource = self._kind.resource
        spec = self._kind.spec(workers)

        async def one(name: str) -> None:
            manifest = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
            await self._api.create(self._path, {**manifest, "spec": spec})

        await run_for_each(names, one)

    async def lose_workers(self, names: Iterable[str]) -> None:
        """Delete the pod of the first worker of each job at once. Both operators give it the same name.

        With a grace, kwok would delete it, which it does by its name, and often again after it was replaced.
        """

        async def one(name: str) -> None:
            pod = f"/api/v1/namespaces/{self._namespace}/pods/{name}-worker-0"
            await self._api.delete(pod, {"gracePeriodSeconds": 0})

        await run_for_each(names, one)

    async def delete(self, seconds: float) -> None:
        """Delete all jobs, and return once nothing of them is left."""

        async def one(key: ObjectKey) -> None:
            await self._api.delete(f"{self._path}/{key.name}", {"propagationPolicy": "Background"})

        await run_for_each(list(self._jobs.objects), one)
        await self.until(lambda: not self._jobs.objects and not self.pods, "all jobs and pods are gone", seconds)
        services = f"/api/v1/namespaces/{self._namespace}/services"

        async def none_left() -> bool:
            return not (await self._api.get(services, limit="1"))["items"]

        await until(none_left, "all Services are gone", seconds=seconds, every=0.1)

    async def until(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Return once a condition is true, which is looked at after each change of a job or a pod.

        Raises:
            TooLate: It is not in time.
        """
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            stand = (
                f"{len(self.running)} of {len(self._jobs.objects)} jobs run, {self.running_pods} of {self.pods} pods"
            )
            raise TooLate(f"not after {seconds:g} s: {what} ({stand})") from None

    @property
    def _path(self) -> str:
        resource = self._kind.resource
        return f"/apis/{resource.api_version}/namespaces/{self._namespace}/{resource.plural}"

    def _job_changed(self, before: _WatchedJob | None, after: _WatchedJob | None) -> None:
        _keep(self.running, before, after, is_member=after is not None and after.running)
        self._changed.set()

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        _keep(self._running_pods, before, after, is_member=after is not None and after.running)
        if after is not None:
            self.created.setdefault(after.metadata.uid, time.monotonic())
        self._changed.set()


def _keep(members: set[str], before: Object | None, after: Object | None, *, is_member: bool) -> None:
    if before is not None:
        members.discard(before.metadata.name)
    if after is not None and is_member:
        members.add(after.metadata.name)


@asynccontextmanager
async def watching_jobs(
    cluster: RunningCluster, api: Api, kind: OperatedKind, namespace: str
) -> AsyncIterator[OperatedJobs]:
    """Create a namespace, and watch its jobs and pods while the block runs."""
    await api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    await until(lambda: api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"), "an account")
    server = await ApiServer.connect(str(cluster.kubeconfig), _REQUEST_SECONDS)
    try:
        jobs = OperatedJobs(api, server, kind, namespace)
        async with asyncio.TaskGroup() as group:
            tasks = []
            for reflector in jobs.reflectors:
                await reflector.first()
                tasks.append(group.create_task(reflector.run()))
            yield jobs
            for task in tasks:
                task.cancel()
    finally:
        await server.close()
