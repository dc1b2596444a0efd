"""A PyTorchJob on the node, whose pods run the real torchrun, under the real training-operator."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.frameworks.frameworks_installation import installed, site_packages
from tests.images.images_building import CHECKOUT
from tests.node.node_ground import TRAINING
from tests.node.node_world import JOBS, NodeWorld
from tests.testkit.controlplane.api import Manifest
from tests.testkit.waiting import until
from tests.torchrun.torchrun_records import Stepped, latest, read

WORKERS = 3
_JOBS = f"/apis/kubeflow.org/v1/namespaces/{JOBS}/pytorchjobs"
_SUPERVISED = f"/apis/job-supervisor.kube-ai.io/v1alpha1/namespaces/{JOBS}/supervisedjobs"
_PREFIX = "job-supervisor.kube-ai.io/"
_OPTED_IN = {f"{_PREFIX}managed-by-job-supervisor": "true"}
_SCRIPT = "/checkout/tests/torchrun/torchrun_training.py"
_RECORDS = "/records"
_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class PyTorchJob:
    """One job, and the directory of the node where its processes write what they do."""

    here: NodeWorld
    name: str
    records: Path

    async def submit(self, sdk: Path) -> None:
        await self.here.api.create(_JOBS, _manifest(self.name, self.records, sdk))

    async def delete(self) -> None:
        await self.here.api.delete(f"{_JOBS}/{self.name}")
        await self.has_pods(0)

    async def has_pods(self, number: int) -> None:
        async def as_many() -> bool:
            labels = f"training.kubeflow.org/job-name={self.name}"
            return len(await self.here.pods(JOBS, labels)) == number

        await until(as_many, f"{self.name} has {number} pods", seconds=_SECONDS)

    async def trains(self, world: int, since: int = 0) -> Stepped:
        """The last step of rank 0, once so many ranks have made 20 more than `since`."""

        async def stepped() -> list[Stepped]:
            last = latest(await self.steps())
            return [last] if last is not None and (last.world, last.step >= since + 20) == (world, True) else []

        [last] = await until(stepped, f"{world} ranks of {self.name} train", seconds=_SECONDS)
        return last

    async def steps(self) -> Sequence[Stepped]:
        return await asyncio.to_thread(read, self.records)

    async def end(self, step: int) -> None:
        """Ends the training at that step, and returns once the operator says that the job has succeeded."""
        (self.records / "end").write_text(str(step), encoding="ascii")

        async def succeeded() -> bool:
            job = await self.here.api.get(f"{_JOBS}/{self.name}")
            return ("Succeeded", "True") in {(each["type"], each["status"]) for each in job["status"]["conditions"]}

        await until(succeeded, f"{self.name} has succeeded", seconds=_SECONDS)

    async def drill(self, worker: int, seconds: int) -> None:
        """Asks for a drill on a worker's pod, which will seem to be reclaimed in so many seconds."""
        await self.here.drill(f"{self.name}-worker-{worker}", seconds)

    async def decided(self, phase: str) -> Any:
        """The job as the supervisor has it, once its phase is that."""

        async def reached() -> Any:
            job = await self.here.api.get(f"{_SUPERVISED}/pytorchjob.{self.name}")
            return job if job.get("status", {}).get("decision", {}).get("phase") == phase else None

        return await until(reached, f"{self.name} is {phase} to the supervisor", seconds=_SECONDS)


def installed_sdk(directory: Path) -> Path:
    """The SDK with the entry point by which torchrun finds its rendezvous backend."""
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(directory), str(CHECKOUT / "sdk")]
    subprocess.run(command, check=True)
    return directory


def _manifest(name: str, records: Path, sdk: Path) -> Manifest:
    # The image has a Python of the same version as the packages, which lie on the node.
    mounted = {"/checkout": CHECKOUT, "/packages": site_packages(installed()), "/sdk": sdk, _RECORDS: records}
    volumes = {f"volume-{number}": path for number, path in enumerate(mounted)}
    command = ["python3", "-m", "torch.distributed.run", "--nproc-per-node", "1", _SCRIPT, "ddp", _RECORDS]
    variables = {
        "PYTHONPATH": "/sdk:/packages:/checkout",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHRUN_STEP_SECONDS": "0.05",
    }
    container = {
        "name": "pytorch",
        "image": TRAINING,
        "command": command,
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in volumes.items()],
    }
    pod = {
        "containers": [container],
        "terminationGracePeriodSeconds": 10,
        "volumes": [{"name": volume, "hostPath": {"path": str(mounted[path])}} for volume, path in volumes.items()],
    }
    template = {"metadata": {"annotations": _OPTED_IN}, "spec": pod}
    policy = {"rdzvBackend": "kubeai", "minReplicas": 2, "maxReplicas": WORKERS, "maxRestarts": 9}
    worker = {"replicas": WORKERS, "restartPolicy": "OnFailure", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "annotations": _OPTED_IN},
        "spec": {"elasticPolicy": policy, "pytorchReplicaSpecs": {"Worker": worker}},
    }
