"""Jobs in a queue of Kueue."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kinds.jobset.jobset_jobs import JobSets
from tests.controlplane.kinds.kind_jobs import MANAGED, KindJobs
from tests.controlplane.kinds.mpijob.mpijob_jobs import MpiJobs
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import PyTorchJobs, TfJobs
from tests.controlplane.kinds.trainjob.trainjob_jobs import TrainJobs
from tests.testkit.controlplane.api import Api, Manifest
from tests.testkit.controlplane.namespace import GPU, Namespace, fresh_namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

_KUEUE = "/apis/kueue.x-k8s.io/v1beta1"
_QUEUE = "gpus"
_KEPT = "example.com/kept"

J = TypeVar("J", bound=KindJobs)
Make = Callable[..., Awaitable[None]]


class LabellingApi(Api):
    """Puts labels onto what it creates."""

    def __init__(self, api: Api) -> None:
        super().__init__(api.session)
        self.labels: dict[str, str] = {}

    async def create(self, path: str, manifest: Manifest) -> Any:
        metadata = manifest["metadata"]
        labels = {**metadata.get("labels", {}), **self.labels}
        return await super().create(path, {**manifest, "metadata": {**metadata, "labels": labels}})


@dataclass(frozen=True, slots=True)
class QueuedJobs(Generic[J]):
    """The jobs of one kind in a namespace, and their Workloads; `make` makes a job of that name and so many workers."""

    api: Api
    labelling: LabellingApi
    jobs: J
    make: Make

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
        """Makes a job in the queue; its priority cannot change later, as the webhooks of Kueue refuse that."""
        self.labelling.labels = {"kueue.x-k8s.io/queue-name": _QUEUE}
        if urgent:
            self.labelling.labels["kueue.x-k8s.io/priority-class"] = self.jobs.namespace.name
        await self.make(name, workers, suspend=True, **asked)

    async def workload(self, name: str) -> Any:
        """The Workload of a job."""
        listed = await self.api.get(f"{_KUEUE}/namespaces/{self.jobs.namespace.name}/workloads")
        [found] = [each for each in listed["items"] if each["metadata"]["ownerReferences"][0]["name"] == name]
        return found

    @asynccontextmanager
    async def pretended(self, cluster: RunningCluster, name: str) -> AsyncIterator[None]:
        """Meanwhile there is a Workload of another namespace that names the job as its owner, and is not active."""
        job = await self.jobs.get(name)
        owner = {part: job[part] for part in ("apiVersion", "kind")} | {"name": name, "uid": job["metadata"]["uid"]}
        containers = [{"name": "c", "image": "none"}]
        sets = [
            {"name": "main", "count": 1, "template": {"spec": {"containers": containers, "restartPolicy": "Never"}}}
        ]
        async with fresh_namespace(cluster, self.api) as tenant:
            path = f"{_KUEUE}/namespaces/{tenant.name}/workloads"
            # Kubernetes deletes it, as its owner is not in its namespace; the finalizer keeps it.
            metadata = {"name": "pretended", "ownerReferences": [{**owner, "controller": True}], "finalizers": [_KEPT]}
            kind = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": metadata}
            await self.api.create(path, {**kind, "spec": {"active": False, "podSets": sets}})
            try:
                yield
            finally:
                await self.api.patch(f"{path}/pretended", {"metadata": {"finalizers": None}})

    async def is_active(self, name: str, *, active: bool) -> None:
        """Returns once the job's Workload is active, or is not."""

        async def reached() -> bool:
            return bool((await self.workload(name))["spec"]["active"]) is active

        await until(reached, f"the Workload of {name} is {'' if active else 'in'}active")


def _jobset_of(jobs: JobSets) -> Make:
    async def make(name: str, workers: int, **asked: Any) -> None:
        await jobs.submit(name, {"worker": (1, workers)}, **asked)

    return make


def _trainjob_of(jobs: TrainJobs) -> Make:
    async def make(name: str, workers: int, annotations: Mapping[str, str] = MANAGED, **asked: Any) -> None:
        await jobs.define_runtime(name)
        manifest = jobs.manifest(name, workers, annotations)
        await jobs.accepted({**manifest, "spec": {**manifest["spec"], **asked}})

    return make


_ELASTIC = {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": 3}
_KINDS: Mapping[str, tuple[Callable[[Api, Namespace], Any], Callable[[Any], Make]]] = {
    "batchjob": (BatchJobs, lambda jobs: jobs.submit),
    "jobset": (JobSets, _jobset_of),
    "mpijob": (MpiJobs, lambda jobs: jobs.submit),
    "pytorchjob": (PyTorchJobs, lambda jobs: partial(jobs.submit, elastic=_ELASTIC)),
    "tfjob": (TfJobs, lambda jobs: jobs.submit),
    "trainjob": (TrainJobs, _trainjob_of),
}


def queued_jobs(kind: str, api: Api, namespace: Namespace) -> QueuedJobs[Any]:
    """The jobs of a kind in a namespace, with a queue that is not open yet."""
    of_namespace, making = _KINDS[kind]
    labelling = LabellingApi(api)
    jobs = of_namespace(labelling, namespace)
    return QueuedJobs(api, labelling, jobs, making(jobs))
