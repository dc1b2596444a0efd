"""Jobs of one kind in a test's namespace, and the objects that the kind's controller has made for them."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar

from tests.testkit.controlplane.api import Api, Manifest
from tests.testkit.controlplane.namespace import GPU, OWNER_LABEL, Namespace
from tests.testkit.waiting import until

PREFIX = "job-supervisor.kube-ai.io/"
MANAGED = {f"{PREFIX}managed-by-job-supervisor": "true"}
MIN_WORKERS = f"{PREFIX}min-workers"
ELASTIC = {**MANAGED, MIN_WORKERS: "2"}


class KindJobs(ABC):
    """The jobs of one kind in a namespace.

    Attributes:
        kind: The kind's name in the registry.
        resource: The API version and the plural of its resource.
        job_label: The label that has the job's name on its pods.
    """

    kind: str
    resource: ClassVar[tuple[str, str]]
    job_label: ClassVar[str]

    def __init__(self, api: Api, namespace: Namespace) -> None:
        self._api = api
        self.namespace = namespace
        version, plural = self.resource
        self._path = f"/apis/{version}/namespaces/{namespace.name}/{plural}"

    async def nodes(self, count: int) -> None:
        """So many nodes with room for one worker each."""
        for number in range(count):
            await self.namespace.node(f"node-{number}", gpus=1)

    @abstractmethod
    async def submit_workers(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        """Makes a job of workers with a GPU each, of which any failed pod would be the end."""

    @abstractmethod
    async def retries(self, name: str) -> int:
        """How many of its retries the job has used."""

    async def suspend(self, name: str) -> None:
        """Suspends a job by hand, as its page says."""
        await self.patch(name, {"spec": self.suspending(suspend=True)})

    async def resume(self, name: str) -> None:
        """Resumes a job by hand, as its page says, also one that has timed out."""
        freed = {f"{PREFIX}suspended-by": None, f"{PREFIX}job-status": None}
        await self.patch(name, {"metadata": {"annotations": freed}, "spec": self.suspending(suspend=False)})

    def suspending(self, *, suspend: bool) -> Manifest:
        """The part of a job's spec that suspends it, or does not."""
        return {"suspend": suspend}

    async def succeed(self, name: str) -> None:
        """Ends all containers of a job's run without an error."""
        for pod in (await self.pods(name)).values():
            await self.end(pod, "Succeeded")

    async def get(self, name: str) -> Any:
        return await self._api.get(f"{self._path}/{name}")

    @property
    def api(self) -> Api:
        """The client of the cluster."""
        return self._api

    async def all(self) -> list[Any]:
        """All jobs of the namespace."""
        return list((await self._api.get(self._path))["items"])

    async def changes(self, name: str) -> AsyncIterator[Any]:
        """The events of a job from now on."""
        version = (await self._api.get(self._path))["metadata"]["resourceVersion"]
        async for event in self._api.watch(self._path, version, fieldSelector=f"metadata.name={name}"):
            yield event

    async def patch(self, name: str, changes: Manifest) -> Any:
        return await self._api.patch(f"{self._path}/{name}", changes)

    async def delete(self, name: str) -> None:
        """Deletes a job and its pods; of a Job of Kubernetes they would stay."""
        await self._api.delete(f"{self._path}/{name}", {"propagationPolicy": "Background"})

    async def annotations(self, name: str) -> Mapping[str, str]:
        return dict((await self.get(name))["metadata"].get("annotations", {}))

    async def annotate(self, name: str, **annotations: str | None) -> None:
        """Writes annotations of ours, with `_` for `-`; None removes one."""
        written = {f"{PREFIX}{key.replace('_', '-')}": value for key, value in annotations.items()}
        await self.patch(name, {"metadata": {"annotations": written}})

    async def conditions(self, name: str) -> dict[str, bool]:
        """Whether each condition is true, by its type."""
        status = (await self.get(name)).get("status", {})
        return {each["type"]: each["status"] == "True" for each in status.get("conditions", [])}

    async def pods(self, name: str) -> dict[str, Any]:
        """The job's pods by their names, without the job's."""
        listed = await self._api.get(f"{self.namespace.path}/pods", labelSelector=f"{self.job_label}={name}")
        return {self.short(pod, name): pod for pod in listed["items"] if self.is_there(pod)}

    def is_there(self, pod: Any) -> bool:  # noqa: ARG002 - kinds that keep failed pods ask
        """Whether a pod is one of a job's present run."""
        return True

    def short(self, pod: Any, job: str) -> str:
        """A pod's name in a test."""
        return str(pod["metadata"]["name"].removeprefix(f"{job}-"))

    async def has_pods(
        self, name: str, *pods: str, condition: Callable[[Any], bool] = lambda _: True
    ) -> dict[str, Any]:
        """The job's pods, once they are just these, and all fulfil the condition."""

        async def just_these() -> Any:
            found = await self.pods(name)
            return [found] if set(found) == set(pods) and all(condition(pod) for pod in found.values()) else None

        [found] = await until(just_these, f"{name} has just the pods {', '.join(pods) or 'none'}")
        return dict(found)

    async def run(self, name: str, *pods: str) -> dict[str, Any]:
        """The job's pods, once they are just these, and run."""
        return await self.has_pods(name, *pods, condition=runs)

    async def runs(self, name: str, workers: int) -> dict[str, Any]:
        """The job's pods, once so many workers run."""
        return await self.run(name, *(f"worker-{number}" for number in range(workers)))

    async def noted(self, name: str) -> None:  # noqa: B027 - nothing to wait for with most kinds
        """Returns once the controller knows that a job runs, where it counts pods that it does not know to be gone."""

    async def delete_pod(self, pod: Any) -> None:
        """Deletes a pod without an eviction."""
        await self._api.delete(f"{self.namespace.path}/pods/{pod['metadata']['name']}")

    async def end(self, pod: Any, phase: str) -> None:
        """Ends a pod, as its kubelet would."""
        code = 0 if phase == "Succeeded" else 1
        containers = pod["status"].get("containerStatuses", [])
        ended = [{**each, "state": {"terminated": {"exitCode": code}}} for each in containers]
        path = f"{self.namespace.path}/pods/{pod['metadata']['name']}/status"
        await self._api.patch(path, {"status": {"phase": phase, "containerStatuses": ended}})

    def pod_spec(self, container: str, **asked: Any) -> Manifest:
        """The spec of a pod that needs a GPU of the namespace's nodes."""
        return {
            "nodeSelector": {OWNER_LABEL: self.namespace.name},
            "containers": [{"name": container, "image": "none", "resources": {"limits": {GPU: "1"}}}],
            # The cluster waits for a kubelet's word for as long as this; kwok's stages give it sooner.
            "terminationGracePeriodSeconds": 5,
            **asked,
        }


def runs(pod: Any) -> bool:
    """Whether a pod runs, and is not being deleted."""
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
