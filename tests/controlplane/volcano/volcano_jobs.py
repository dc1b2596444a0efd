"""Volcano's jobs in one test's namespace."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import GPU, OWNER_LABEL, Namespace
from tests.testkit.waiting import until

PREFIX = "job-supervisor.kube-ai.io/"
MANAGED = {f"{PREFIX}managed-by-job-supervisor": "true"}


class VolcanoJobs:
    """The jobs of a namespace, and what Volcano has made of them."""

    kind = "vcjob"

    def __init__(self, api: Api, namespace: Namespace) -> None:
        self._api = api
        self.namespace = namespace
        self._path = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace.name}/jobs"

    async def nodes(self, count: int) -> None:
        """So many nodes with room for one pod each."""
        for number in range(count):
            await self.namespace.node(f"node-{number}", gpus=1)

    async def submit(
        self,
        name: str,
        tasks: Mapping[str, int],
        *,
        min_available: int | None = None,
        policies: Sequence[Mapping[str, str]] = (),
        annotations: Mapping[str, str] = MANAGED,
    ) -> None:
        """Makes a job with these numbers of pods, each with a GPU."""
        container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "1"}}}
        pod = {
            "nodeSelector": {OWNER_LABEL: self.namespace.name},
            "containers": [container],
            "terminationGracePeriodSeconds": 5,
        }
        spec = {
            "schedulerName": "volcano",
            "policies": list(policies),
            "tasks": [{"name": task, "replicas": size, "template": {"spec": pod}} for task, size in tasks.items()],
            **({} if min_available is None else {"minAvailable": min_available}),
        }
        metadata = {"name": name, "annotations": dict(annotations)}
        manifest = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata, "spec": spec}
        await self._api.create(self._path, manifest)

    async def command(self, name: str, action: str) -> None:
        """Has Volcano carry out a command of its own."""
        job = (await self.get(name))["metadata"]
        target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": name, "uid": job["uid"]}
        metadata = {"generateName": f"{name}-", "ownerReferences": [{**target, "controller": True}]}
        body = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": metadata}
        path = f"/apis/bus.volcano.sh/v1alpha1/namespaces/{self.namespace.name}/commands"
        await self._api.create(path, {**body, "action": action, "target": target})

    async def get(self, name: str) -> Any:
        return await self._api.get(f"{self._path}/{name}")

    async def phase(self, name: str, *phases: str) -> None:
        """Returns once the job is in one of these phases."""

        async def reached() -> bool:
            return (await self.get(name)).get("status", {}).get("state", {}).get("phase") in phases

        await until(reached, f"{name} is {' or '.join(phases)}")

    async def retries(self, name: str) -> tuple[int, int]:
        """How many retries the job has used, and how often Volcano has restarted all of its pods."""
        status = (await self.get(name))["status"]
        return status.get("retryCount", 0), status.get("version", 0)

    async def pods(self, name: str) -> dict[str, Any]:
        """The job's pods by their names, without the job's."""
        listed = await self._api.get(f"{self.namespace.path}/pods", labelSelector=f"volcano.sh/job-name={name}")
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

    async def runs(self, name: str, tasks: Mapping[str, int]) -> dict[str, Any]:
        """The job's pods, once so many of each task run."""
        pods = [f"{task}-{number}" for task, size in tasks.items() for number in range(size)]
        return await self.has_pods(name, *pods, condition=_runs)


def _runs(pod: Any) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
