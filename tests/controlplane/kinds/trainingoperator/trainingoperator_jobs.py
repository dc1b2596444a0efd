"""PyTorchJobs and TFJobs in one test's namespace."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tests.controlplane.kinds.kind_jobs import MANAGED, MIN_WORKERS, KindJobs
from tests.testkit.controlplane.api import Manifest
from tests.testkit.waiting import until

ROUNDS = {"rdzvBackend": "kubeai", "minReplicas": 2, "maxReplicas": 4, "maxRestarts": 9}
_FAILURES = ("Failed", "Restarting")


class ReplicatedJobs(KindJobs):
    """The jobs of one kind in a namespace, and what the operator has made of them."""

    job_label = "training.kubeflow.org/job-name"
    title: ClassVar[str]
    replicas: ClassVar[str]
    container: ClassVar[str]

    async def submit(  # noqa: PLR0913 - what a job may ask for
        self,
        name: str,
        workers: int,
        *,
        restart_policy: str = "OnFailure",
        elastic: Mapping[str, Any] | None = None,
        servers: int = 0,
        masters: int = 0,
        suspend: bool = False,
        annotations: Mapping[str, str] = MANAGED,
    ) -> None:
        """Makes a job of workers, parameter servers and masters with a GPU each."""
        template = {"spec": self.pod_spec(self.container)}
        sizes = {"Worker": workers, "PS": servers, "Master": masters}
        replicas = {
            role: {"replicas": size, "restartPolicy": restart_policy, "template": template}
            for role, size in sizes.items()
            if size
        }
        spec = {"runPolicy": {"backoffLimit": 0, "suspend": suspend}, self.replicas: replicas}
        manifest = {
            "apiVersion": "kubeflow.org/v1",
            "kind": self.title,
            "metadata": {"name": name, "annotations": dict(annotations)},
            "spec": {**spec, **({} if elastic is None else {"elasticPolicy": dict(elastic)})},
        }
        await self._api.create(self._path, manifest)

    async def resume(self, name: str) -> None:
        """Not before the operator knows that the pods are gone, which it would count as failed ones of the new run."""
        await self._catches_up()
        await super().resume(name)

    async def _catches_up(self) -> None:
        """Returns once the operator has seen what has become of all pods so far: it sees their changes in order."""
        await self.submit("later", 1, annotations={})
        await self.noted("later")
        await self._api.delete(f"{self._path}/later")
        await self.has_pods("later")

    async def noted(self, name: str) -> None:
        async def counted() -> bool:
            job = await self.get(name)
            active = job.get("status", {}).get("replicaStatuses", {}).get("Worker", {}).get("active", 0)
            return bool(active == job["spec"][self.replicas]["Worker"]["replicas"])

        await until(counted, f"the operator has seen all workers of {name} run")

    def suspending(self, *, suspend: bool) -> Manifest:
        return {"runPolicy": {"suspend": suspend}}

    async def retries(self, name: str) -> int:
        """How many kinds of failures its conditions tell of."""
        conditions = await self.conditions(name)
        return sum(conditions.get(failure, False) for failure in _FAILURES)

    async def runs(self, name: str, workers: int, servers: int = 0) -> dict[str, Any]:
        """The job's pods, once so many workers and parameter servers run."""
        pods = [*(f"worker-{number}" for number in range(workers)), *(f"ps-{number}" for number in range(servers))]
        return await self.run(name, *pods)


class PyTorchJobs(ReplicatedJobs):
    """PyTorchJobs."""

    kind = "pytorchjob"
    resource = ("kubeflow.org/v1", "pytorchjobs")
    title, replicas, container = "PyTorchJob", "pytorchReplicaSpecs", "pytorch"

    async def submit_workers(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        """One with a minimum is elastic."""
        is_elastic = MIN_WORKERS in annotations
        elastic = {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": workers} if is_elastic else None
        await self.submit(name, workers, restart_policy="Never", elastic=elastic, annotations=annotations)


class PyTorchRounds(PyTorchJobs):
    """PyTorchJobs whose hosts meet in rounds that the supervisor forms."""

    async def submit_workers(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        await self.submit(name, workers, elastic=ROUNDS, annotations=annotations)


class TfJobs(ReplicatedJobs):
    """TFJobs."""

    kind = "tfjob"
    resource = ("kubeflow.org/v1", "tfjobs")
    title, replicas, container = "TFJob", "tfReplicaSpecs", "tensorflow"

    async def submit_workers(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        await self.submit(name, workers, restart_policy="Never", annotations=annotations)
