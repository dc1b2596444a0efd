"""TrainingJobs in one test's namespace, and the stand-in operator that runs them."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from servicekit.kubernetes.server import ApiServer
from simulator.et_operator.crds import create_crds
from simulator.et_operator.operator import EtOperator
from simulator.et_operator.settings import QUICK, Flaw, OperatorPace, OperatorSettings
from tests.testkit.controlplane.api import Api, Manifest
from tests.testkit.controlplane.namespace import GPU, OWNER_LABEL, Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import PATIENCE, until

SUSPENDED = "job-supervisor.kube-ai.io/job-suspended"
RESUME: dict[str, Any] = {"phase": "Created", "conditions": [], "targetWorkers": None, "currentWorkers": None}
_GROUP = "/apis/kai.alibabacloud.com/v1alpha1"


def training_job(home: str, workers: int, worker: Mapping[str, Any] | None, **spec: Any) -> dict[str, Any]:
    """The spec of a job of so many workers on that namespace's nodes; more of the worker's part, and of the spec."""
    return {
        "restartPolicy": "OnFailure",
        **spec,
        "etReplicaSpecs": {
            "launcher": {"replicas": 1, "template": _template(home)},
            "worker": {"replicas": workers, **(worker or {}), "template": _template(home, limits={GPU: "1"})},
        },
    }


def _template(home: str, **resources: Any) -> Manifest:
    container = {"name": "et", "image": "none", "resources": resources}
    return {"spec": {"nodeSelector": {OWNER_LABEL: home}, "containers": [container]}}


class OperatorJobs:
    """The jobs of one namespace.

    A local directory has the files that a command in a job's launcher finds in its EDL directory.
    """

    def __init__(self, api: Api, namespace: Namespace, directory: Path) -> None:
        self._api = api
        self.namespace = namespace
        self._directory = directory
        self._path = f"{_GROUP}/namespaces/{namespace.name}"

    async def create(self, name: str, workers: int, worker: Mapping[str, Any] | None = None, **spec: Any) -> None:
        self.edl(name).mkdir(parents=True)
        await self.namespace.runs_commands(f"{name}-launcher", EDL=str(self.edl(name)))
        await self.make(name, training_job(self.namespace.name, workers, worker, **spec))

    async def make(self, name: str, spec: Manifest, **metadata: Any) -> None:
        await self._make("TrainingJob", "trainingjobs", name, spec, **metadata)

    def edl(self, name: str) -> Path:
        return self._directory / self.namespace.name / name

    async def scale(self, kind: str, name: str, job: str, **spec: Any) -> None:
        await self._make(kind, f"{kind.lower()}s", name, {"selector": {"name": job}, **spec})

    async def scale_phase(self, kind: str, name: str) -> str:
        return str((await self._api.get(f"{self._path}/{kind.lower()}s/{name}")).get("status", {}).get("phase", ""))

    async def scale_outs(self) -> dict[str, Any]:
        found = await self._api.get(f"{self._path}/scaleouts")
        return {each["metadata"]["name"]: each for each in found["items"]}

    async def unscale(self, kind: str, name: str) -> None:
        await self._api.delete(f"{self._path}/{kind.lower()}s/{name}")

    async def cordon(self, *, unschedulable: bool = True) -> None:
        node = f"/api/v1/nodes/node.{self.namespace.name}"
        await self._api.patch(node, {"spec": {"unschedulable": unschedulable}})

    async def get(self, name: str) -> Any:
        return await self._api.get(f"{self._path}/trainingjobs/{name}")

    async def status(self, name: str) -> Any:
        return (await self.get(name)).get("status", {})

    async def phase(self, name: str, phase: str, seconds: float = PATIENCE, **more: Any) -> Any:
        """Its status, once it has that phase and whatever else is named."""

        async def reached() -> Any:
            status = await self.status(name)
            return status if {**status, "phase": phase, **more} == status else None

        return await until(reached, f"{name} is {phase} {more or ''}", seconds=seconds)

    async def annotate(self, name: str, value: str | None) -> None:
        await self._api.patch(f"{self._path}/trainingjobs/{name}", {"metadata": {"annotations": {SUSPENDED: value}}})

    async def patch(self, name: str, spec: Manifest) -> None:
        await self._api.patch(f"{self._path}/trainingjobs/{name}", {"spec": spec})

    async def write_status(self, name: str, status: Manifest) -> None:
        await self._api.patch(f"{self._path}/trainingjobs/{name}/status", {"status": status})

    async def delete(self, name: str) -> None:
        await self._api.delete(f"{self._path}/trainingjobs/{name}")

    async def config(self, name: str) -> Any:
        return (await self._api.get(f"{self.namespace.path}/configmaps/{name}-config"))["data"]

    async def rewrite_config(self, name: str, hosts: str) -> None:
        await self._api.patch(f"{self.namespace.path}/configmaps/{name}-config", {"data": {"hostfile": hosts}})

    async def pods(self, name: str) -> dict[str, Any]:
        found = await self._api.get(f"{self.namespace.path}/pods", labelSelector=f"training-job-name={name}")
        return {pod["metadata"]["name"]: pod for pod in found["items"]}

    async def has_pods(self, name: str, *pods: str, seconds: float = PATIENCE) -> dict[str, Any]:
        async def just_these() -> Any:
            found = await self.pods(name)
            return [found] if set(found) == set(pods) else None

        [found] = await until(just_these, f"{name} has just the pods {', '.join(pods) or 'none'}", seconds=seconds)
        return dict(found)

    async def end_pod(self, name: str, phase: str) -> None:
        """Have a pod end, as its kubelet would say; not before it runs, because kwok would have it run afterwards."""
        pod = f"{self.namespace.path}/pods/{name}"

        async def runs() -> bool:
            return bool((await self._api.get(pod))["status"]["phase"] == "Running")

        await until(runs, f"{name} runs")
        await self._api.patch(f"{pod}/status", {"status": {"phase": phase}})

    async def end_container(self, name: str, code: int) -> None:
        """Have a pod's container end, as its kubelet says a second before it says so of the pod."""
        pod = f"{self.namespace.path}/pods/{name}"
        statuses = (await self._api.get(pod))["status"]["containerStatuses"]
        ended = [{**each, "state": {"terminated": {"exitCode": code}}} for each in statuses]
        await self._api.patch(f"{pod}/status", {"status": {"containerStatuses": ended}})

    async def delete_pod(self, name: str) -> None:
        await self._api.delete(f"{self.namespace.path}/pods/{name}")

    async def _make(self, kind: str, plural: str, name: str, spec: Manifest, **metadata: Any) -> None:
        manifest = {
            "apiVersion": "kai.alibabacloud.com/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, **metadata},
            "spec": spec,
        }
        await self._api.create(f"{self._path}/{plural}", manifest)


def names(job: str, workers: Iterable[int], *, launcher: bool = True) -> list[str]:
    return [*(f"{job}-worker-{index}" for index in workers), *([f"{job}-launcher"] if launcher else [])]


@asynccontextmanager
async def operating(
    cluster: RunningCluster, namespace: str, *flaws: Flaw, pace: OperatorPace = QUICK
) -> AsyncIterator["asyncio.Task[None]"]:
    """Runs the stand-in for the jobs of one namespace. If it crashes, its task ends before the block does."""
    server = await ApiServer.connect(str(cluster.kubeconfig), 10.0)
    operator = EtOperator(server, OperatorSettings(pace, frozenset(flaws), namespace))
    task = asyncio.create_task(operator.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.close()


async def defined(cluster: RunningCluster) -> None:
    server = await ApiServer.connect(str(cluster.kubeconfig), 10.0)
    try:
        await create_crds(server)
    finally:
        await server.close()
