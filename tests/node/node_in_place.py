"""A JobSet on the node whose pods are restarted in place, or made anew, under its real controller."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.controlplane.kinds.jobset.jobset_controller import in_place_agent
from tests.images.images_building import CHECKOUT
from tests.node.node_ground import TRAINING
from tests.testkit.controlplane.api import Api, Manifest
from tests.testkit.controlplane.binaries import kubernetes_version
from tests.testkit.waiting import until

RESTARTS_IN_PLACE = tuple(map(int, kubernetes_version().split(".")[:2])) >= (1, 36)
"""Whether the kubelet does so, which decides what JobSet the cluster of the tests has."""

WORKERS = 2
IN_PLACE, ANEW = "InPlaceRestart", "Recreate"
_NAMESPACE = "in-place"
_JOB_SETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{_NAMESPACE}/jobsets"
_SUPERVISED = f"/apis/job-supervisor.kube-ai.io/v1alpha1/namespaces/{_NAMESPACE}/supervisedjobs"
_PODS = f"/api/v1/namespaces/{_NAMESPACE}/pods"
_RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{_NAMESPACE}"
_OPTED_IN = {"job-supervisor.kube-ai.io/managed-by-job-supervisor": "true"}
_LABEL = "jobset.sigs.k8s.io/jobset-name"
_SCRIPT = "/checkout/tests/node/node_in_place_training.py"
_GRACE_SECONDS = 2
_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class InPlaceStep:
    """A step of a worker: its number in the worker's process, and when it was made in Unix seconds."""

    number: int
    at: float


@dataclass(frozen=True, slots=True)
class InPlaceJob:
    """Handles one JobSet of a test, and reads what its processes have written to a directory of the node."""

    api: Api
    name: str
    home: Path

    async def submit(self, strategy: str) -> None:
        self.home.mkdir(parents=True)
        await self.api.create(_JOB_SETS, _manifest(self.name, self.home, strategy))

    async def delete(self) -> None:
        await self.api.delete(f"{_JOB_SETS}/{self.name}", {"propagationPolicy": "Background"})

        async def gone() -> bool:
            return not await self.pods()

        await until(gone, f"{self.name} has no pods", seconds=_SECONDS)

    async def pods(self) -> list[Any]:
        return list((await self.api.get(_PODS, labelSelector=f"{_LABEL}={self.name}"))["items"])

    async def status(self) -> Any:
        return (await self.api.get(f"{_JOB_SETS}/{self.name}")).get("status", {})

    async def begins(self, since: float = 0.0) -> float:
        """When the last worker has made the first step of a process that began after an instant."""

        async def begun() -> list[float]:
            first = [[step.at for step in self.steps(worker) if step.number == 1] for worker in range(WORKERS)]
            later = [[at for at in found if at > since] for found in first]
            return [found[0] for found in later] if all(later) else []

        return max(await until(begun, f"{self.name} trains", seconds=_SECONDS))

    def steps(self, worker: int) -> Sequence[InPlaceStep]:
        path = self.home / f"steps-{worker}"
        lines = path.read_text(encoding="ascii").splitlines(keepends=True) if path.exists() else []
        parts = [line.split() for line in lines if line.endswith("\n")]
        return [InPlaceStep(int(number), float(at)) for number, at in parts]

    async def fail(self, worker: int) -> float:
        """Has the process of a worker fail; returns when it made its last step, in Unix seconds."""
        (self.home / f"fail-{worker}").touch()
        failed = self.home / f"failed-{worker}"
        await until(failed.exists, f"worker {worker} of {self.name} has failed", seconds=_SECONDS)
        return self.steps(worker)[-1].at

    async def decided(self, phase: str, run: int) -> Any:
        """The job as the supervisor has it, once it is in that phase of that run."""

        async def reached() -> Any:
            job = await self.api.get(f"{_SUPERVISED}/jobset.{self.name}")
            decision = job.get("status", {}).get("decision", {})
            return job if (decision.get("phase"), decision.get("run")) == (phase, run) else None

        return await until(reached, f"run {run} of {self.name} is {phase} to the supervisor", seconds=_SECONDS)


async def prepare(api: Api) -> None:
    """Makes the namespace of the jobs, in which JobSet's agents may follow their JobSet and annotate their pod."""
    await api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
    rules = [
        {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]},
    ]
    await api.create(f"{_RBAC}/roles", {"metadata": {"name": "agent"}, "rules": rules})
    binding = {
        "metadata": {"name": "agent"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "agent"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": _NAMESPACE}],
    }
    await api.create(f"{_RBAC}/rolebindings", binding)


def restarts(pod: Any) -> set[int]:
    """How often the containers of a pod were started again."""
    status: Mapping[str, Any] = pod["status"]
    return {each["restartCount"] for each in (*status["containerStatuses"], *status.get("initContainerStatuses", ()))}


def _manifest(name: str, home: Path, strategy: str) -> Manifest:
    mounted = {"/checkout": CHECKOUT, "/training-home": home, "/agent": in_place_agent().parent}
    volumes = {f"volume-{number}": path for number, path in enumerate(mounted)}
    mounts = [{"name": volume, "mountPath": path} for volume, path in volumes.items()]
    worker: dict[str, Any] = {
        "name": "train",
        "image": TRAINING,
        "command": ["python3", "-B", _SCRIPT, "/training-home"],
        "volumeMounts": mounts,
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "containers": [worker],
        "volumes": [{"name": volume, "hostPath": {"path": str(mounted[path])}} for volume, path in volumes.items()],
    }
    job: dict[str, Any] = {"parallelism": WORKERS, "completions": WORKERS, "backoffLimit": 0}
    if strategy == IN_PLACE:
        worker |= {"restartPolicy": "Never", "restartPolicyRules": [_restarts_all("NotIn", 0)]}
        pod["initContainers"] = [_agent(name, mounts)]
        job |= {"backoffLimit": 2**31 - 1, "podReplacementPolicy": "Failed"}
    job["template"] = {"metadata": {"annotations": _OPTED_IN}, "spec": pod}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "annotations": _OPTED_IN},
        "spec": {
            "failurePolicy": {"maxRestarts": 1, "restartStrategy": strategy},
            "replicatedJobs": [{"name": "worker", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _agent(name: str, mounts: Sequence[Manifest]) -> Manifest:
    return {
        "name": "agent",
        "image": TRAINING,
        "command": ["/agent/in-place-restart-agent"],
        "env": [
            {"name": "JOBSET_NAME", "value": name},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "volumeMounts": mounts,
        "restartPolicy": "Always",
        "restartPolicyRules": [_restarts_all("In", 1)],
        "startupProbe": {
            "httpGet": {"path": "/barrier-is-down", "port": 8081},
            "periodSeconds": 1,
            "failureThreshold": 600,
        },
    }


def _restarts_all(operator: str, code: int) -> Manifest:
    return {"action": "RestartAllContainers", "exitCodes": {"operator": operator, "values": [code]}}
