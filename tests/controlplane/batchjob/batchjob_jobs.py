"""Indexed Jobs in one test's namespace."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.testkit.controlplane.api import Api, Manifest
from tests.testkit.controlplane.namespace import GPU, OWNER_LABEL, Namespace
from tests.testkit.waiting import until

PREFIX = "job-supervisor.kube-ai.io/"
MANAGED = {f"{PREFIX}managed-by-job-supervisor": "true"}
_INDEX = "batch.kubernetes.io/job-completion-index"
ELASTIC = {**MANAGED, f"{PREFIX}min-workers": "2"}


class BatchJobs:
    """The jobs of one namespace, and what the controller has made of them."""

    kind = "batchjob"

    def __init__(self, api: Api, namespace: Namespace) -> None:
        self._api = api
        self.namespace = namespace
        self._path = f"/apis/batch/v1/namespaces/{namespace.name}/jobs"

    async def nodes(self, count: int) -> None:
        """So many nodes with room for one worker each."""
        for number in range(count):
            await self.namespace.node(f"node-{number}", gpus=1)

    async def submit(
        self,
        name: str,
        workers: int,
        annotations: Mapping[str, str] = MANAGED,
        *,
        owner: str = "",
        **asked: Any,
    ) -> None:
        """Makes a job of workers with a GPU each, of which any failed pod would be the end; `owner` is another job."""
        owners = [await self._owner(owner)] if owner else []
        pod = {
            "nodeSelector": {OWNER_LABEL: self.namespace.name},
            "containers": [{"name": "train", "image": "none", "resources": {"limits": {GPU: "1"}}}],
            "terminationGracePeriodSeconds": 5,
            "restartPolicy": "Never",
        }
        size = {"parallelism": workers, "completions": workers, "completionMode": "Indexed", "backoffLimit": 0}
        manifest = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "annotations": dict(annotations), "ownerReferences": owners},
            "spec": {**size, **asked, "template": {"spec": pod}},
        }
        await self._api.create(self._path, manifest)

    async def _owner(self, name: str) -> Manifest:
        uid = (await self.get(name))["metadata"]["uid"]
        return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}

    async def get(self, name: str) -> Any:
        return await self._api.get(f"{self._path}/{name}")

    async def patch(self, name: str, changes: Manifest) -> Any:
        return await self._api.patch(f"{self._path}/{name}", changes)

    async def began(self, name: str, at: str) -> None:
        """Sets the time at which a suspended job was last started."""
        await self._api.patch(f"{self._path}/{name}/status", {"status": {"startTime": at}})

    async def delete(self, pod: Any) -> None:
        """Deletes a pod without an eviction."""
        await self._api.delete(f"{self.namespace.path}/pods/{pod['metadata']['name']}")

    async def end(self, pod: Any, phase: str) -> None:
        """Ends a pod, as its kubelet would."""
        path = f"{self.namespace.path}/pods/{pod['metadata']['name']}/status"
        await self._api.patch(path, {"status": {"phase": phase}})

    async def ended(self, name: str) -> str:
        """The reason for which the job has failed, once it has."""

        async def reason() -> Any:
            conditions = (await self.get(name))["status"].get("conditions", [])
            return next((each["reason"] for each in conditions if each["type"] == "Failed"), None)

        return str(await until(reason, f"{name} has failed"))

    async def failures(self, name: str) -> int:
        """How many pods its controller has counted as failed."""
        return int((await self.get(name))["status"].get("failed", 0))

    async def conditions(self, name: str) -> dict[str, bool]:
        """Whether each condition is true, by its type."""
        status = (await self.get(name)).get("status", {})
        return {each["type"]: each["status"] == "True" for each in status.get("conditions", [])}

    async def pods(self, name: str) -> dict[str, Any]:
        """The job's pods by `worker-` and their index, without those that have failed and stay for their logs."""
        listed = await self._api.get(
            f"{self.namespace.path}/pods", labelSelector=f"batch.kubernetes.io/job-name={name}"
        )
        there = (pod for pod in listed["items"] if not _is_left(pod))
        return {f"worker-{pod['metadata']['labels'][_INDEX]}": pod for pod in there}

    async def has_pods(
        self, name: str, *pods: str, condition: Callable[[Any], bool] = lambda _: True
    ) -> dict[str, Any]:
        """The job's pods, once they are just these, and all fulfil the condition."""

        async def just_these() -> Any:
            found = await self.pods(name)
            return [found] if set(found) == set(pods) and all(condition(pod) for pod in found.values()) else None

        [found] = await until(just_these, f"{name} has just the pods {', '.join(pods) or 'none'}")
        return dict(found)

    async def runs(self, name: str, workers: int) -> dict[str, Any]:
        """The job's pods, once so many workers run."""
        return await self.has_pods(name, *(f"worker-{number}" for number in range(workers)), condition=_runs)


def _is_left(pod: Any) -> bool:
    return pod["status"]["phase"] == "Failed" and "deletionTimestamp" not in pod["metadata"]


def _runs(pod: Any) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
