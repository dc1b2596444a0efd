"""JobSets in one test's namespace."""

from collections.abc import Mapping
from typing import Any

from tests.controlplane.kinds.kind_jobs import MANAGED, KindJobs
from tests.testkit.waiting import until

_LABEL = "jobset.sigs.k8s.io/"
_INDEX = "batch.kubernetes.io/job-completion-index"


class JobSets(KindJobs):
    """The JobSets of one namespace, and the objects that their controller has made for them."""

    kind = "jobset"
    resource = ("jobset.x-k8s.io/v1alpha2", "jobsets")
    job_label = f"{_LABEL}jobset-name"

    async def submit_workers(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        """Makes a JobSet of one Job."""
        await self.submit(name, {"worker": (1, workers)}, annotations)

    async def submit(  # noqa: PLR0913 - a JobSet has no fewer sides
        self,
        name: str,
        jobs: Mapping[str, tuple[int, int]],
        annotations: Mapping[str, str] = MANAGED,
        *,
        prepared_by: str = "",
        without_gpu: str = "",
        deadline_seconds: int | None = None,
        **asked: Any,
    ) -> None:
        """Makes a JobSet of replicated jobs, each with its number of Jobs, and of pods with a GPU in each Job.

        The pods of the job `without_gpu` have none. Any failed pod would be the end of it. The deadline is that of each
        Job, and the others begin when `prepared_by` is complete.
        """
        replicated = [self._replicated(job, replicas, pods) for job, (replicas, pods) in jobs.items()]
        for each in replicated:
            each["template"]["spec"]["activeDeadlineSeconds"] = deadline_seconds
            if each["name"] == without_gpu:
                del each["template"]["spec"]["template"]["spec"]["containers"][0]["resources"]
        for each in replicated if prepared_by else ():
            if each["name"] != prepared_by:
                each["dependsOn"] = [{"name": prepared_by, "status": "Complete"}]
        manifest = {
            "apiVersion": self.resource[0],
            "kind": "JobSet",
            "metadata": {"name": name, "annotations": dict(annotations)},
            "spec": {**asked, "replicatedJobs": replicated},
        }
        await self._api.create(self._path, manifest)

    async def submit_in_place(self, name: str, workers: int, restarts: int) -> None:
        """Makes a JobSet of one Job whose pods are restarted in place, at most so often."""
        worker = self._replicated("worker", 1, workers)
        spec: dict[str, Any] = {"replicatedJobs": [worker]}
        self.restart_in_place(spec, worker, restarts)
        manifest = {
            "apiVersion": self.resource[0],
            "kind": "JobSet",
            "metadata": {"name": name, "annotations": MANAGED},
            "spec": spec,
        }
        await self._api.create(self._path, manifest)

    def restart_in_place(self, spec: dict[str, Any], replicated: dict[str, Any], restarts: int) -> None:
        """Has the pods of a JobSet restarted in place, at most so often; they are those of its replicated job."""
        spec["failurePolicy"] = {"maxRestarts": restarts, "restartStrategy": "InPlaceRestart"}
        # Its webhook requires both: no pod that is lost ends the Job, and none is replaced before it has ended.
        replicated["template"]["spec"] |= {"backoffLimit": 2**31 - 1, "podReplacementPolicy": "Failed"}

    async def attempt(self, name: str) -> int | None:
        """The attempt in which its pods may train; None before the first one."""
        found: int | None = (await self.get(name))["status"].get("currentInPlaceRestartAttempt")
        return found

    async def start_containers(self, name: str, *pods: str) -> None:
        """Says of running pods that their containers have started, anew or in place, as JobSet's agent in them does."""
        current = await self.attempt(name)
        annotations = {f"{_LABEL}in-place-restart-attempt": "0" if current is None else str(current + 1)}
        found = await self.pods(name)
        for pod in pods:
            path = f"{self.namespace.path}/pods/{found[pod]['metadata']['name']}"
            await self._api.patch(path, {"metadata": {"annotations": annotations}})

    async def attempts(self, name: str, number: int) -> None:
        """Returns once the pods may train in that attempt."""

        async def reached() -> bool:
            return await self.attempt(name) == number

        await until(reached, f"{name} is in attempt {number}")

    def _replicated(self, name: str, replicas: int, pods: int) -> dict[str, Any]:
        opted_in = {"metadata": {"annotations": MANAGED}}
        template = {**opted_in, "spec": self.pod_spec("train", restartPolicy="Never")}
        job = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": template}
        return {"name": name, "replicas": replicas, "template": {**opted_in, "spec": job}}

    async def retries(self, name: str) -> int:
        """How often its controller has restarted all of its Jobs."""
        return int((await self.get(name))["status"].get("restarts", 0))

    async def began(self, job: str, at: str) -> None:
        """Sets the time at which one of its suspended Jobs was last started."""
        path = f"/apis/batch/v1/namespaces/{self.namespace.name}/jobs/{job}/status"
        await self._api.patch(path, {"status": {"startTime": at}})

    async def ended(self, name: str) -> str:
        """The reason for which the JobSet has failed, once it has."""

        async def reason() -> Any:
            conditions = (await self.get(name)).get("status", {}).get("conditions", [])
            return next((each["reason"] for each in conditions if each["type"] == "Failed"), None)

        return str(await until(reason, f"{name} has failed"))

    def is_there(self, pod: Any) -> bool:
        """Pods that have ended stay for their logs."""
        return pod["status"]["phase"] not in ("Failed", "Succeeded") or "deletionTimestamp" in pod["metadata"]

    def short(self, pod: Any, job: str) -> str:  # noqa: ARG002 - its labels say it
        """By its replicated job and its number in all of its Jobs, as far as each has one pod or there is one Job."""
        labels = pod["metadata"]["labels"]
        return f"{labels[f'{_LABEL}replicatedjob-name']}-{int(labels[f'{_LABEL}job-index']) + int(labels[_INDEX])}"
