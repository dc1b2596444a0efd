"""PyTorchJobs or TFJobs in one test's namespace."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.testkit.controlplane.api import Api, Manifest
from tests.testkit.controlplane.namespace import GPU, OWNER_LABEL, Namespace
from tests.testkit.waiting import until

PREFIX = "job-supervisor.kube-ai.io/"
MANAGED = {f"{PREFIX}managed-by-job-supervisor": "true"}
ROUNDS = {"rdzvBackend": "kubeai", "minReplicas": 2, "maxReplicas": 4, "maxRestarts": 9}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of the operator: its name, and the field and the container that it wants."""

    name: str
    replicas: str
    container: str


PYTORCH = Kind("PyTorchJob", "pytorchReplicaSpecs", "pytorch")
TENSORFLOW = Kind("TFJob", "tfReplicaSpecs", "tensorflow")


class ReplicatedJobs:
    """The jobs of one kind in a namespace, and what the operator has made of them."""

    def __init__(self, api: Api, namespace: Namespace, kind: Kind) -> None:
        self._api = api
        self._kind = kind
        self.kind = kind.name.lower()
        self.namespace = namespace
        self._path = f"/apis/kubeflow.org/v1/namespaces/{namespace.name}/{self.kind}s"

    async def nodes(self, count: int) -> None:
        """So many nodes with room for one worker each."""
        for number in range(count):
            await self.namespace.node(f"node-{number}", gpus=1)

    async def submit(  # noqa: PLR0913 - what a job may ask for
        self,
        name: str,
        workers: int,
        *,
        restart_policy: str = "OnFailure",
        elastic: Mapping[str, Any] | None = None,
        servers: int = 0,
        annotations: Mapping[str, str] = MANAGED,
    ) -> None:
        """Makes a job of workers and parameter servers with a GPU each."""
        container = {"name": self._kind.container, "image": "none", "resources": {"limits": {GPU: "1"}}}
        pod = {
            "nodeSelector": {OWNER_LABEL: self.namespace.name},
            "containers": [container],
            "terminationGracePeriodSeconds": 5,
        }
        sizes = {"Worker": workers, "PS": servers}
        replicas = {
            role: {"replicas": size, "restartPolicy": restart_policy, "template": {"spec": pod}}
            for role, size in sizes.items()
            if size
        }
        spec = {"runPolicy": {"backoffLimit": 0}, self._kind.replicas: replicas}
        manifest = {
            "apiVersion": "kubeflow.org/v1",
            "kind": self._kind.name,
            "metadata": {"name": name, "annotations": dict(annotations)},
            "spec": {**spec, **({} if elastic is None else {"elasticPolicy": dict(elastic)})},
        }
        await self._api.create(self._path, manifest)

    async def get(self, name: str) -> Any:
        return await self._api.get(f"{self._path}/{name}")

    async def patch(self, name: str, changes: Manifest) -> Any:
        return await self._api.patch(f"{self._path}/{name}", changes)

    async def conditions(self, name: str) -> dict[str, bool]:
        """Whether each condition is true, by its type."""
        status = (await self.get(name)).get("status", {})
        return {each["type"]: each["status"] == "True" for each in status.get("conditions", [])}

    async def pods(self, name: str) -> dict[str, Any]:
        """The job's pods by their names, without the job's."""
        listed = await self._api.get(
            f"{self.namespace.path}/pods", labelSelector=f"training.kubeflow.org/job-name={name}"
        )
        return {pod["metadata"]["name"].removeprefix(f"{name}-"): pod for pod in listed["items"]}

    async def has_pods(
        self, name: str, *pods: str, condition: Callable[[Any], bool] = lambda _: True
    ) -> dict[str, Any]:
        """The job's pods, once they are just these, and all fulfil the condition."""

        async def just_these() -> Any:
            found = await self.pods(name)
            return [found] if set(found) == set(pods) and all(condition(pod) for pod in found.values()) else None

        [found] = await until(just_these, f"{name} has just the pods {', '.join(pods) or 'none'}")
        return dict(found)

    async def runs(self, name: str, workers: int, servers: int = 0) -> dict[str, Any]:
        """The job's pods, once so many workers and parameter servers run."""
        pods = [*(f"worker-{number}" for number in range(workers)), *(f"ps-{number}" for number in range(servers))]
        return await self.has_pods(name, *pods, condition=_runs)


def _runs(pod: Any) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
