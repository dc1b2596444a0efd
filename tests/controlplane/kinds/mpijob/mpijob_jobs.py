"""MPIJobs in one test's namespace."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.controlplane.kinds.kind_jobs import ELASTIC, MANAGED, KindJobs
from tests.testkit.controlplane.api import Manifest
from tests.testkit.controlplane.namespace import GPU, OWNER_LABEL
from tests.testkit.waiting import until

ROLE = "training.kubeflow.org/job-role"
COMMAND = (
    "horovodrun -np $(wc -l </etc/mpi/hostfile) --min-np 2 --host-discovery-script /etc/mpi/discover_hosts.sh train.py"
)
LAUNCHERS = {"mpijob.test/launchers": "true"}


def mpi_job_spec(home: str, workers: int, *, command: str = COMMAND, **run_policy: Any) -> dict[str, Any]:
    """The spec of a job whose workers have a GPU each, and whose launcher needs a node for launchers."""
    return {
        "slotsPerWorker": 1,
        "runPolicy": {"backoffLimit": 0, **run_policy},
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "template": _template({OWNER_LABEL: home, **LAUNCHERS}, ["sh", "-c", command])},
            "Worker": {"replicas": workers, "template": _template({OWNER_LABEL: home}, [], limits={GPU: "1"})},
        },
    }


def _template(selector: Mapping[str, str], command: list[str], **resources: Any) -> Manifest:
    container = {"name": "mpi", "image": "none", "command": command, "resources": resources}
    # The cluster waits for a kubelet's word for as long as this; kwok's stages give it sooner.
    spec = {"nodeSelector": selector, "containers": [container], "terminationGracePeriodSeconds": 5}
    return {"spec": spec}


class MpiJobs(KindJobs):
    """The jobs of one namespace, and the objects that the operator has made for them."""

    kind = "mpijob"
    resource = ("kubeflow.org/v2beta1", "mpijobs")
    job_label = "training.kubeflow.org/job-name"

    async def nodes(self, count: int) -> None:
        """So many nodes with room for one worker each, and another one for launchers."""
        await super().nodes(count)
        await self.namespace.node("launchers", gpus=0, labels=LAUNCHERS)

    async def submit_workers(self, name: str, workers: int, annotations: Mapping[str, str] = MANAGED) -> None:
        """Its launcher's command says its minimum."""
        await self.submit(name, workers, annotations=annotations)

    async def submit(self, name: str, workers: int, *, annotations: Mapping[str, str] = ELASTIC, **asked: Any) -> None:
        """Makes a job; `asked` is more of its spec's run policy, or its launcher's command."""
        manifest = {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": name, "annotations": dict(annotations)},
            "spec": mpi_job_spec(self.namespace.name, workers, **asked),
        }
        await self._api.create(self._path, manifest)

    def suspending(self, *, suspend: bool) -> Manifest:
        return {"runPolicy": {"suspend": suspend}}

    async def resize(self, name: str, workers: int) -> None:
        await self.patch(name, {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": workers}}}})

    async def is_now(self, name: str, condition: str, *, value: bool = True) -> None:
        """Returns once the job has that condition."""

        async def reached() -> bool:
            return (await self.conditions(name)).get(condition, False) is value

        await until(reached, f"{name} is {'' if value else 'not '}{condition}")

    def short(self, pod: Any, job: str) -> str:
        """The launcher's, which is another with each start, is `launcher` here."""
        own = super().short(pod, job)
        return "launcher" if own.startswith("launcher") else own

    async def runs(self, name: str, workers: int) -> dict[str, Any]:
        """The job's pods, once its launcher and so many workers run."""
        pods = [f"worker-{number}" for number in range(workers)]
        return await self.run(name, "launcher", *pods)

    async def discovered(self, name: str) -> list[str]:
        """The workers in discover_hosts.sh, without the job's name."""
        config = await self._api.get(f"{self.namespace.path}/configmaps/{name}-config")
        lines = config["data"]["discover_hosts.sh"].splitlines()[1:]
        return [line.removeprefix("echo ").partition(".")[0].removeprefix(f"{name}-") for line in lines]

    async def discovers(self, name: str, *workers: str) -> None:
        """Returns once discover_hosts.sh lists just these."""

        async def just_these() -> bool:
            return await self.discovered(name) == list(workers)

        await until(just_these, f"discover_hosts.sh of {name} lists {', '.join(workers) or 'none'}")

    async def relabel(self, name: str, pod: str, role: str) -> None:
        await self._api.patch(f"{self.namespace.path}/pods/{name}-{pod}", {"metadata": {"labels": {ROLE: role}}})

    async def launcher_job(self, name: str) -> Any:
        """The batch Job of its launcher."""
        return await self._api.get(f"/apis/batch/v1/namespaces/{self.namespace.name}/jobs/{name}-launcher")

    async def retries(self, name: str) -> int:
        """How many of its launcher's retries are burned."""
        return int((await self.launcher_job(name)).get("status", {}).get("failed", 0))

    async def began_before(self, name: str, seconds: float) -> bool:
        """Whether the first start of its launcher's Job is so long ago."""
        began = datetime.fromisoformat((await self.launcher_job(name))["status"]["startTime"])
        return (datetime.now(UTC) - began).total_seconds() > seconds

    async def forget_start(self, name: str) -> None:
        """Clears the startTime of the launcher's Job, which its deadline would be counted from."""
        path = f"/apis/batch/v1/namespaces/{self.namespace.name}/jobs/{name}-launcher/status"
        await self._api.patch(path, {"status": {"startTime": None}})

    async def succeed(self, name: str) -> None:
        """Its launcher ends."""
        await self.end((await self.pods(name))["launcher"], "Succeeded")
