"""TrainJobs in one test's namespace, and the runtimes that they are made from."""

from collections.abc import Mapping
from typing import Any

from tests.controlplane.kinds.jobset.jobset_jobs import JobSets
from tests.controlplane.kinds.kind_jobs import MANAGED
from tests.testkit.controlplane.api import Api, Manifest, ObjectRefused
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.waiting import until

_GROUP = "trainer.kubeflow.org"
_STEP = f"{_GROUP}/trainjob-ancestor-step"
_PREPARATION = "dataset-initializer"
_STRICT = "fieldValidation=Strict"
NO_RUNTIME = "must be created before"
"""What the API server says of a TrainJob without a runtime."""


class TrainJobs(JobSets):
    """The TrainJobs of one namespace, and the objects that their controller and that of JobSets have made for them."""

    kind = "trainjob"
    resource = (f"{_GROUP}/v1alpha1", "trainjobs")

    def __init__(self, api: Api, namespace: Namespace) -> None:
        super().__init__(api, namespace)
        self._runtimes = f"/apis/{self.resource[0]}/namespaces/{namespace.name}/trainingruntimes"
        self.jobsets = JobSets(api, namespace)

    async def submit_workers(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        """Makes a runtime of that name for one node, and a TrainJob of more nodes with it."""
        await self.define_runtime(name)
        await self.train(name, workers, annotations)

    async def train(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        """Makes a TrainJob with the runtime of that name."""
        await self.accepted(self.manifest(name, workers, annotations))

    async def accepted(self, manifest: Manifest) -> Any:
        """Makes a TrainJob once its controller has seen its runtime."""

        async def made() -> Any:
            try:
                return await self.create(manifest)
            except ObjectRefused as refusal:
                if NO_RUNTIME not in str(refusal):
                    raise
                return None

        return await until(made, "the TrainJob has a runtime")

    async def create(self, manifest: Manifest) -> Any:
        """Makes a TrainJob; raises ObjectRefused for a field that it does not have, and while it has no runtime."""
        return await self._api.create(f"{self._path}?{_STRICT}", manifest)

    def manifest(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> Manifest:
        """A TrainJob with the runtime of its name."""
        return {
            "apiVersion": self.resource[0],
            "kind": "TrainJob",
            "metadata": {"name": name, "annotations": dict(annotations)},
            "spec": {"runtimeRef": {"kind": "TrainingRuntime", "name": name}, "trainer": {"numNodes": workers}},
        }

    async def submit_in_place(self, name: str, workers: int, restarts: int) -> None:
        template = self._template()
        self.restart_in_place(template["spec"], template["spec"]["replicatedJobs"][0], restarts)
        await self._define_runtime(name, template)
        await self.train(name, workers)

    async def define_runtime(self, name: str, *, prepared: bool = False, opted_in: bool = True) -> None:
        """Makes a runtime of one node, with a job that prepares the training or without one."""
        template = self._template(prepared=prepared)
        for each in () if opted_in else template["spec"]["replicatedJobs"]:
            del each["template"]["spec"]["template"]["metadata"]
        await self._define_runtime(name, template)

    async def _define_runtime(self, name: str, template: Manifest) -> None:
        policy: Manifest = {"numNodes": 1, "torch": {}}
        runtime = {
            "apiVersion": self.resource[0],
            "kind": "TrainingRuntime",
            "metadata": {"name": name},
            "spec": {"mlPolicy": policy, "template": template},
        }
        await self.create_runtime(runtime)

    async def create_runtime(self, manifest: Manifest) -> None:
        """Makes a runtime, of the namespace or of the cluster; raises ObjectRefused for an unknown field."""
        of_cluster = manifest["kind"] == "ClusterTrainingRuntime"
        path = f"/apis/{self.resource[0]}/clustertrainingruntimes" if of_cluster else self._runtimes
        await self._api.create(f"{path}?{_STRICT}", manifest)

    async def change_runtime(self, name: str, image: str) -> None:
        """Writes another image into a runtime."""
        await self._api.patch(f"{self._runtimes}/{name}", {"spec": {"template": self._template(image)}})

    async def delete_runtime(self, name: str) -> None:
        await self._api.delete(f"{self._runtimes}/{name}")

    def _template(self, image: str = "none", *, prepared: bool = False) -> Any:
        """That of the JobSet. Any failed pod would be the end of it."""
        trainer = self._job("node", "trainer", image)
        jobs = [trainer]
        if prepared:
            trainer["dependsOn"] = [{"name": _PREPARATION, "status": "Complete"}]
            jobs = [self._job(_PREPARATION, _PREPARATION, image), trainer]
        return {"spec": {"replicatedJobs": jobs}}

    def _job(self, name: str, step: str, image: str) -> dict[str, Any]:
        pods = self.pod_spec(name, restartPolicy="Never")
        pods["containers"][0]["image"] = image
        job = {"backoffLimit": 0, "template": {"metadata": {"annotations": MANAGED}, "spec": pods}}
        return {"name": name, "template": {"metadata": {"labels": {_STEP: step}}, "spec": job}}

    async def attempt(self, name: str) -> int | None:
        return await self.jobsets.attempt(name)

    async def retries(self, name: str) -> int:
        """How often the controller of JobSets has restarted all of its Jobs."""
        return await self.jobsets.retries(name)

    def short(self, pod: Any, job: str) -> str:
        """The pods that train are called workers."""
        return super().short(pod, job).replace("node-", "worker-")
