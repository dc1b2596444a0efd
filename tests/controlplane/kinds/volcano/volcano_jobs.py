"""Volcano's jobs in one test's namespace."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.controlplane.kinds.kind_jobs import MANAGED, PREFIX, KindJobs
from tests.testkit.waiting import until


class VolcanoJobs(KindJobs):
    """The jobs of a namespace, and what Volcano has made of them."""

    kind = "vcjob"
    resource = ("batch.volcano.sh/v1alpha1", "jobs")
    job_label = "volcano.sh/job-name"

    async def submit_workers(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        await self.submit(name, {"worker": workers}, annotations=annotations)

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
        pod = self.pod_spec("main")
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

    async def phase(self, name: str, *phases: str) -> None:
        """Returns once the job is in one of these phases."""

        async def reached() -> bool:
            return (await self.get(name)).get("status", {}).get("state", {}).get("phase") in phases

        await until(reached, f"{name} is {' or '.join(phases)}")

    async def suspend(self, name: str) -> None:
        await self.command(name, "AbortJob")

    async def resume(self, name: str) -> None:
        """As the page says: by the sizes where the supervisor has suspended the job, or else by Volcano's command."""
        job = await self.get(name)
        recorded = job["metadata"]["annotations"].get(f"{PREFIX}requested-sizes")
        if recorded is None:
            await self.phase(name, "Aborted")
            await self.command(name, "ResumeJob")
            return
        sizes = json.loads(recorded)
        tasks = [{**task, **size} for task, size in zip(job["spec"]["tasks"], sizes["tasks"], strict=True)]
        await self._api.patch(f"{self._path}/{name}", {"spec": {"minAvailable": sizes["minAvailable"], "tasks": tasks}})

    async def retries(self, name: str) -> int:
        """How many retries the job has used, or how often Volcano has restarted all of its pods."""
        status = (await self.get(name))["status"]
        return max(int(status.get("retryCount", 0)), int(status.get("version", 0)))

    async def tasks_run(self, name: str, tasks: Mapping[str, int]) -> dict[str, Any]:
        """The job's pods, once so many of each task run."""
        return await self.run(name, *(f"{task}-{number}" for task, size in tasks.items() for number in range(size)))
