"""Jobs in a queue of Kueue."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tests.controlplane.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.mpijob.mpijob_jobs import MpiJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import GPU
from tests.testkit.waiting import until

_KUEUE = "/apis/kueue.x-k8s.io/v1beta1"
_QUEUE = "gpus"

J = TypeVar("J", MpiJobs, BatchJobs)


@dataclass(frozen=True, slots=True)
class QueuedJobs(Generic[J]):
    """The jobs of one kind in a namespace, and their Workloads."""

    api: Api
    jobs: J

    async def open(self, gpus: int) -> None:
        """Makes a queue with a quota, in which a job preempts those of a lower priority."""
        own = self.jobs.namespace.name
        quota = {"name": own, "resources": [{"name": GPU, "nominalQuota": gpus}]}
        spec = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": [GPU], "flavors": [quota]}],
        }
        await self._create("ResourceFlavor", own)
        await self._create("ClusterQueue", own, spec=spec)
        await self._create("LocalQueue", _QUEUE, f"namespaces/{own}/", spec={"clusterQueue": own})
        await self._create("WorkloadPriorityClass", own, value=100)

    async def _create(self, kind: str, name: str, where: str = "", **content: Any) -> None:
        plural = f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"
        manifest = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "metadata": {"name": name}, **content}
        await self.api.create(f"{_KUEUE}/{where}{plural}", manifest)

    async def submit(self, name: str, workers: int, *, urgent: bool = False, **asked: Any) -> None:
        """Makes a job in the queue; Kueue's webhook, which is not there, would make it suspended."""
        await self.jobs.submit(name, workers, suspend=True, **asked)
        labels = {"kueue.x-k8s.io/queue-name": _QUEUE}
        if urgent:
            labels["kueue.x-k8s.io/priority-class"] = self.jobs.namespace.name
        await self.jobs.patch(name, {"metadata": {"labels": labels}})

    async def workload(self, name: str) -> Any:
        """The Workload of a job."""
        listed = await self.api.get(f"{_KUEUE}/namespaces/{self.jobs.namespace.name}/workloads")
        [found] = [each for each in listed["items"] if each["metadata"]["ownerReferences"][0]["name"] == name]
        return found

    async def is_active(self, name: str, *, active: bool) -> None:
        """Returns once the job's Workload is active, or is not."""

        async def reached() -> bool:
            return bool((await self.workload(name))["spec"]["active"]) is active

        await until(reached, f"the Workload of {name} is {'' if active else 'in'}active")

    async def delete(self, name: str) -> None:
        own = self.jobs.namespace.name
        await self.api.delete(f"/apis/kubeflow.org/v2beta1/namespaces/{own}/mpijobs/{name}")
