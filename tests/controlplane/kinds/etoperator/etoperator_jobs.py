"""TrainingJobs in one test's namespace."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.controlplane.kinds.kind_jobs import MANAGED, KindJobs
from tests.supervisor.jobs.trainingjob.trainingjob_objects import spec
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import OWNER_LABEL, Namespace
from tests.testkit.waiting import until

_LAUNCHERS = {"trainingjob.test/launchers": "true"}


class TrainingJobs(KindJobs):
    """The jobs of one namespace; what a command in a launcher finds as its EDL is in a directory here."""

    kind = "trainingjob"
    resource = ("kai.alibabacloud.com/v1alpha1", "trainingjobs")
    job_label = "training-job-name"

    def __init__(self, api: Api, namespace: Namespace, directory: Path) -> None:
        super().__init__(api, namespace)
        self._directory = directory

    async def nodes(self, count: int) -> None:
        """So many nodes with room for one worker each, and another one for launchers."""
        await super().nodes(count)
        await self.namespace.node("launchers", gpus=0, labels=_LAUNCHERS)

    async def submit_workers(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        """Its minimum is in its spec; a launcher that fails is not started again."""
        body = {**spec(workers), "backoffLimit": 0}
        for role, part in body["etReplicaSpecs"].items():
            selector = {OWNER_LABEL: self.namespace.name, **({} if role == "worker" else _LAUNCHERS)}
            part["template"]["spec"]["nodeSelector"] = selector
        await self.namespace.runs_commands(f"{name}-launcher", EDL=str(self._directory))
        metadata = {"name": name, "annotations": dict(annotations)}
        version = self.resource[0]
        manifest = {"apiVersion": version, "kind": "TrainingJob", "metadata": metadata, "spec": body}
        await self._api.create(self._path, manifest)

    async def suspend(self, name: str) -> None:
        await self.annotate(name, job_suspended="true")

    async def resume(self, name: str) -> None:
        """Not before the operator says that it is suspended: else it would take the job for one that runs."""

        async def is_suspended() -> bool:
            return bool((await self.get(name))["status"].get("phase") == "Suspended")

        await until(is_suspended, f"{name} is Suspended")
        await self.annotate(name, job_suspended=None, job_status=None, suspended_by=None)

    async def succeed(self, name: str) -> None:
        """Its launcher ends."""
        await self.end((await self.pods(name))["launcher"], "Succeeded")

    async def retries(self, name: str) -> int:
        """How often the operator has restarted the job."""
        return int((await self.get(name))["status"].get("restartCount") or 0)

    async def runs(self, name: str, workers: int) -> dict[str, Any]:
        """The job's pods, once its launcher and so many workers run."""
        return await self.run(name, "launcher", *(f"worker-{number}" for number in range(workers)))
