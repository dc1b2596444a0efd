"""Indexed Jobs in one test's namespace."""

from collections.abc import Mapping
from typing import Any

from tests.controlplane.kinds.kind_jobs import MANAGED, KindJobs
from tests.testkit.controlplane.api import Manifest
from tests.testkit.waiting import until

_INDEX = "batch.kubernetes.io/job-completion-index"


class BatchJobs(KindJobs):
    """The jobs of one namespace, and the objects that the controller has made for them."""

    kind = "batchjob"
    resource = ("batch/v1", "jobs")
    job_label = "batch.kubernetes.io/job-name"

    async def submit_workers(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        await self.submit(name, workers, annotations)

    async def submit(
        self,
        name: str,
        workers: int,
        annotations: Mapping[str, str] = MANAGED,
        *,
        owner: str = "",
        pod_annotations: Mapping[str, str] | None = None,
        **asked: Any,
    ) -> None:
        """Makes a job of workers with a GPU each, of which any failed pod would be the end; `owner` is another job."""
        template = {
            "metadata": {"annotations": dict(pod_annotations or {})},
            "spec": self.pod_spec("train", restartPolicy="Never"),
        }
        owners = [await self._owner(owner)] if owner else []
        size = {"parallelism": workers, "completions": workers, "completionMode": "Indexed", "backoffLimit": 0}
        manifest = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "annotations": dict(annotations), "ownerReferences": owners},
            "spec": {**size, **asked, "template": template},
        }
        await self._api.create(self._path, manifest)

    async def _owner(self, name: str) -> Manifest:
        uid = (await self.get(name))["metadata"]["uid"]
        return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}

    async def began(self, name: str, at: str) -> None:
        """Sets the time at which a suspended job was last started."""
        await self._api.patch(f"{self._path}/{name}/status", {"status": {"startTime": at}})

    async def ended(self, name: str) -> str:
        """The reason for which the job has failed, once it has."""

        async def reason() -> Any:
            conditions = (await self.get(name))["status"].get("conditions", [])
            return next((each["reason"] for each in conditions if each["type"] == "Failed"), None)

        return str(await until(reason, f"{name} has failed"))

    async def retries(self, name: str) -> int:
        """How many pods its controller has counted as failed."""
        return int((await self.get(name))["status"].get("failed", 0))

    def is_there(self, pod: Any) -> bool:
        """Pods that have failed stay for their logs."""
        return pod["status"]["phase"] != "Failed" or "deletionTimestamp" in pod["metadata"]

    def short(self, pod: Any, job: str) -> str:  # noqa: ARG002 - its index says it
        return f"worker-{pod['metadata']['labels'][_INDEX]}"
