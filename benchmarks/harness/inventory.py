"""An API server with nodes, Indexed Jobs and their pods, which nothing runs, and a supervisor for them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import audit
from benchmarks.harness.cluster import run_for_each
from benchmarks.harness.server import BenchmarkServer
from supervisor.cluster.annotations import MANAGED, MIN_WORKERS
from supervisor.domain.ids import JobName, cluster_job
from tests.testkit.controlplane.binaries import BinaryProgram, binaries
from tests.testkit.controlplane.installed import InstalledPlace, api_server, clear, place
from tests.testkit.controlplane.namespace import GPU

_NAMESPACE = "training"
_NODES = "/api/v1/nodes"
_PODS = f"/api/v1/namespaces/{_NAMESPACE}/pods"
_JOBS = f"/apis/batch/v1/namespaces/{_NAMESPACE}/jobs"
_INDEX = "batch.kubernetes.io/job-completion-index"
_SINCE = "2026-01-01T00:00:00Z"
_TAINT = "aws-node-termination-handler/spot-itn"
_OPTED_IN = {MANAGED: "true"}
_LIMITS = {"cpu": "12", "memory": "96Gi", GPU: "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryShape:
    """How many pods a node has, and how many nodes a job."""

    pods_a_node: int = 8
    nodes_a_job: int = 8

    @property
    def pods_a_job(self) -> int:
        return self.pods_a_node * self.nodes_a_job


class Inventory:
    """The objects, created in steps, and a supervisor that is not started yet. Created by `inventory()`."""

    def __init__(self, root: Path, here: InstalledPlace, shape: InventoryShape) -> None:
        self.api = here.api
        self.audit = audit.log_in(root / "audit")
        self.server = BenchmarkServer(
            root / "server",
            tls=False,
            settings={"JOB_SUPERVISOR_STORE": "kubernetes", "KUBECONFIG": str(here.kubeconfig)},
            start_seconds=300.0,
        )
        self._shape = shape
        self._nodes = 0

    async def prepare(self) -> None:
        """Create the namespace and the account of its pods."""
        await self.api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
        accounts = f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts"
        await self.api.create(accounts, {"metadata": {"name": "default"}})

    async def grow(self, nodes: int) -> None:
        """Create what is missing to that number of nodes, with their jobs and pods, and delete the stored jobs."""
        await clear(self.api)
        await run_for_each(range(self._nodes, nodes), self._make_node)
        await run_for_each(
            range(self._nodes // self._shape.nodes_a_job, nodes // self._shape.nodes_a_job), self._make_job
        )
        self._nodes = nodes

    @property
    def jobs(self) -> list[JobName]:
        """The names of all jobs in the supervisor."""
        return [_known_as(job) for job in range(self._nodes // self._shape.nodes_a_job)]

    async def announce(self, job: int) -> JobName:
        """Have a taint announce that the first node of a job ends. Returns the name of the job."""
        node = f"{_NODES}/{_node(job * self._shape.nodes_a_job)}"
        await self.api.patch(node, {"spec": {"taints": [{"key": _TAINT, "effect": "NoSchedule"}]}})
        return _known_as(job)

    async def _make_node(self, number: int) -> None:
        name = _node(number)
        capacity = {"cpu": "96", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "250", GPU: "8"}
        labels = {
            "kubernetes.io/hostname": name,
            "node.kubernetes.io/instance-type": "large",
            "topology.kubernetes.io/zone": "zone-1",
        }
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [_condition("Ready")]}
        await self.api.create(_NODES, {"metadata": {"name": name, "labels": labels}, "status": status})

    async def _make_job(self, number: int) -> None:
        pods = self._shape.pods_a_job
        job = await self.api.create(_JOBS, _job(number, pods))
        await self.api.patch(f"{_JOBS}/{_name(number)}/status", {"status": {"startTime": _SINCE, "active": pods}})
        for index in range(pods):
            node = _node(number * self._shape.nodes_a_job + index // self._shape.pods_a_node)
            pod = _pod(job, index, node)
            await self.api.create(_PODS, pod)
            await self.api.patch(f"{_PODS}/{pod['metadata']['name']}/status", {"status": _running(index)})


@asynccontextmanager
async def inventory(root: Path, shape: InventoryShape) -> AsyncIterator[Inventory]:
    """Start etcd and an API server, and prepare a supervisor that is not started yet.

    Raises:
        NoGo: There is no control plane, and none can be built here.
        BinaryNotBuilt: It is not built yet.
    """
    programs = binaries()
    # Its programs end with this thread, so start it before anything else.
    with api_server(programs, root / "controlplane", {BinaryProgram.API_SERVER: audit.flags(root / "audit")}) as plane:
        async with place(plane) as here:
            one = Inventory(root, here, shape)
            await one.prepare()
            try:
                yield one
            finally:
                await one.server.stop()


def _node(number: int) -> str:
    return f"node-{number}"


def _name(job: int) -> str:
    return f"job-{job}"


def _known_as(job: int) -> JobName:
    return cluster_job(_NAMESPACE, "batchjob", _name(job))


def _condition(kind: str) -> Mapping[str, str]:
    return {"type": kind, "status": "True", "lastTransitionTime": _SINCE}


def _job(number: int, pods: int) -> Mapping[str, Any]:
    return {
        "metadata": {"name": _name(number), "annotations": {**_OPTED_IN, MIN_WORKERS: str(pods)}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {"metadata": {"annotations": _OPTED_IN}, "spec": _spec("")},
        },
    }


def _pod(job: Mapping[str, Any], index: int, node: str) -> Mapping[str, Any]:
    """Return a pod as the job controller creates it, bound to a node."""
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    host = f"{name}-{index}"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
    return {
        "metadata": {
            "name": f"{host}-x{index:04}",
            "generateName": f"{host}-",
            "annotations": {**_OPTED_IN, _INDEX: str(index)},
            "labels": {
                _INDEX: str(index),
                "batch.kubernetes.io/controller-uid": uid,
                "batch.kubernetes.io/job-name": name,
            },
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {**_spec(node), "hostname": host},
    }


def _spec(node: str) -> Mapping[str, Any]:
    """Return a spec of the usual length."""
    variables = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "8", "PYTHONUNBUFFERED": "1"}
    return {
        **({"nodeName": node} if node else {}),
        "restartPolicy": "Never",
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            {"name": "data", "hostPath": {"path": "/mnt/data"}},
        ],
        "containers": [
            {
                "name": "main",
                "image": "registry.example.com/training/trainer:2026.1",
                "command": ["torchrun", "--nnodes=64", "--nproc-per-node=1", "--rdzv-backend=c10d", "train.py"],
                "env": [{"name": name, "value": value} for name, value in variables.items()],
                "resources": {"limits": _LIMITS},
                "volumeMounts": [
                    {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - a path in the container
                    {"name": "data", "mountPath": "/data"},
                ],
            }
        ],
    }


def _running(index: int) -> Mapping[str, Any]:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    address = f"10.{index % 250}.{index // 250 % 250}.1"
    container = {
        "name": "main",
        "image": "registry.example.com/training/trainer:2026.1",
        "imageID": "registry.example.com/training/trainer@sha256:" + "0" * 64,
        "containerID": "containerd://" + "0" * 64,
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": _SINCE}},
    }
    return {
        "phase": "Running",
        "conditions": [_condition(kind) for kind in kinds],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": _SINCE,
        "containerStatuses": [container],
    }
