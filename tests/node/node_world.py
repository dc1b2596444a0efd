"""What people have: the chart, installed; the operator; a training job; and a cloud that takes the node away."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servicekit.kubernetes.server import ApiServer
from simulator.cloud.metadata import MetadataServer
from simulator.cloud.trace import Node
from simulator.et_operator.definitions import define
from simulator.et_operator.operator import Operator
from simulator.et_operator.settings import QUICK, Settings
from tests.controlplane.controlplane_api import Api, Manifest, client, until
from tests.controlplane.controlplane_running import Cluster
from tests.images.images_building import CHECKOUT
from tests.node.node_ground import FIRST, TRAINING
from tests.node.node_running import NODE, names

RELEASE, NAMESPACE, JOBS = "elastic-job-supervisor", "arena-system", "training"
HTTP_PORT = 8471
_SERVICE = f"{RELEASE}.{NAMESPACE}.svc"
_AUDIENCE = "job-supervisor.kube-ai.io"
_OPTED_IN = {f"{_AUDIENCE}/managed-by-job-supervisor": "true"}
# As the metadata's own link-local address: on the node's loopback, for the agent alone, which has the host's network.
_METADATA = ("127.0.0.254", 18880)
_CHART = CHECKOUT / "charts" / "elastic-job-supervisor"
_GROUP = "kai.alibabacloud.com"
_TRAINING_JOBS = f"/apis/{_GROUP}/v1alpha1/namespaces/{JOBS}/trainingjobs"
_SUPERVISED_JOBS = f"/apis/job-supervisor.kube-ai.io/v1alpha1/namespaces/{JOBS}/supervisedjobs"
_WEBHOOK = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{RELEASE}"
_NOTICES = "/apis/job-supervisor.kube-ai.io/v1alpha1/reclaimnotices"
_SECONDS = 120.0
_COMMAND_SECONDS = 180.0
TRAIN = ("python3", "/training/train.py", "/checkpoint")
_PODS = 3


@dataclass(frozen=True, slots=True)
class World:
    """Made by `world()`; the node's name is `NODE`."""

    api: Api
    metadata: MetadataServer
    ground: Path

    def reclaim(self, gone_at: float) -> None:
        """The cloud announces that it takes the node away then, in Unix seconds."""
        self.metadata.notice(Node(NODE), gone_at)

    async def settle(self) -> None:
        """The jobs are deleted, and the cloud announces nothing any more; returns when all of that is so."""
        for job in (await self.api.get(_TRAINING_JOBS))["items"]:
            await self.api.delete(f"{_TRAINING_JOBS}/{job['metadata']['name']}")
            await self.no_pods(job["metadata"]["name"])
        self.metadata.withdraw(Node(NODE))

        async def none() -> bool:
            notices = (await self.api.get(_NOTICES))["items"]
            return all(each.get("status", {}).get("state") == "withdrawn" for each in notices)

        await until(none, "no notice is active", _SECONDS)

    async def train(self, name: str) -> Path:
        """A job with one worker on the node; returns where it saves, once it has made a step."""
        home = await self.start(name, TRAIN)
        await self.steps(name, home)
        return home

    async def start(self, name: str, command: Sequence[str]) -> Path:
        """A job whose worker runs that command, which is to save in /checkpoint; returns what that is on the node."""
        home = self.ground / "checkpoints" / name
        home.mkdir(parents=True)
        home.chmod(0o755)
        await self.api.create(_TRAINING_JOBS, _training_job(name, home, command))
        return home

    async def steps(self, name: str, home: Path) -> None:
        """Return when the job has made a step, and the supervisor knows that it runs."""
        await until(lambda: _exists(home / "step"), f"{name} trains", _SECONDS)
        await self.decided(name, "Running")

    async def decided(self, name: str, phase: str) -> Any:
        """The job as the supervisor has it, once its phase is that."""

        async def reached() -> Any:
            one = await self.api.get(f"{_SUPERVISED_JOBS}/trainingjob.{name}")
            return one if one.get("status", {}).get("decision", {}).get("phase") == phase else None

        return await until(reached, f"{name} is {phase} to the supervisor", _SECONDS)

    async def saved(self, home: Path) -> Mapping[str, Any]:
        """What the training process has saved, and what it was told before."""
        await until(lambda: _exists(home / "checkpoint"), f"a checkpoint in {home}", _SECONDS)
        told: Mapping[str, Any] = json.loads((home / "checkpoint").read_bytes())
        return told

    async def pods(self, namespace: str, labels: str = "") -> list[Any]:
        """Those with these labels, as `NAME=VALUE`."""
        found = await self.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=labels)
        return list(found["items"])

    async def no_pods(self, name: str) -> None:
        """Return when the job has none any more."""

        async def none() -> bool:
            return not await self.pods(JOBS, f"training-job-name={name}")

        await until(none, f"{name} has no pods", _SECONDS)

    async def address(self, pod: str) -> str:
        """The pod's, once it is Ready."""

        async def given() -> str:
            found = await self.api.get(f"/api/v1/namespaces/{JOBS}/pods/{pod}")
            return str(found["status"]["podIP"]) if _is_ready(found) else ""

        return await until(given, f"{pod} is ready", _SECONDS)


@asynccontextmanager
async def world(cluster: Cluster, helm: Path, ground: Path) -> AsyncIterator[World]:
    """Everything, installed and ready."""
    async with client(cluster) as api, _cloud() as metadata, _operator(cluster):
        for namespace in (NAMESPACE, JOBS):
            await api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        _install(cluster, helm, ground)
        service = await api.get(f"/api/v1/namespaces/{NAMESPACE}/services/{RELEASE}")
        with names(ground, {_SERVICE: service["spec"]["clusterIP"]}), _explained(ground):
            here = World(api, metadata, ground)
            await _ready(here)
            await _asked(api)
            yield here


@asynccontextmanager
async def _cloud() -> AsyncIterator[MetadataServer]:
    metadata = MetadataServer(host=_METADATA[0], port=_METADATA[1])
    metadata.add(Node(NODE))
    await metadata.start()
    try:
        yield metadata
    finally:
        await metadata.stop()


@asynccontextmanager
async def _operator(cluster: Cluster) -> AsyncIterator[None]:
    server = await ApiServer.connect(str(cluster.kubeconfig), 10.0)
    task = None
    try:
        await define(server)
        task = asyncio.create_task(Operator(server, Settings(QUICK)).run())
        yield
    finally:
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await server.close()


async def _asked(api: Api) -> None:
    """Return when the API server knows the webhook by the CA that the supervisors have made."""

    async def known() -> bool:
        hooks = (await api.get(_WEBHOOK))["webhooks"]
        return all(each["clientConfig"].get("caBundle") for each in hooks)

    await until(known, "the webhook's CA is told", _SECONDS)


def _install(cluster: Cluster, helm: Path, ground: Path) -> None:
    values = {
        "images": {"registry": "localhost", "pullPolicy": "Never"},
        "agent": {"settings": {"metadataUrl": f"http://{_METADATA[0]}:{_METADATA[1]}/nodes/{NODE}"}},
    }
    file = ground / "values.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    command = [str(helm), "install", RELEASE, str(_CHART), "--namespace", NAMESPACE, "--values", str(file)]
    # It keeps what it has seen of the API server there.
    environment = {"KUBECONFIG": str(cluster.kubeconfig), "HOME": str(ground)}
    done = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, timeout=_COMMAND_SECONDS
    )
    assert done.returncode == 0, done.stderr


async def _ready(here: World) -> None:
    async def all_of_them() -> bool:
        pods = await here.pods(NAMESPACE)
        return len(pods) == _PODS and all(_is_ready(pod) for pod in pods)

    await until(all_of_them, "two supervisors and an agent are ready", _SECONDS)


def _is_ready(pod: Any) -> bool:
    return ("Ready", "True") in {(each["type"], each["status"]) for each in pod["status"].get("conditions", ())}


@contextmanager
def _explained(ground: Path) -> Iterator[None]:
    """With a failure come the last words of every container."""
    try:
        yield
    except Exception as error:
        for log in sorted(Path("/var/log/pods").rglob("*.log")):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            error.add_note("\n".join([f"== {log.relative_to('/var/log/pods')}", *lines]))
        for log in sorted(ground.glob("*.log")):
            error.add_note("\n".join([f"== {log.name}", *log.read_text(errors="replace").splitlines()[-15:]]))
        raise


async def _exists(path: Path) -> bool:
    return path.exists()  # noqa: ASYNC240 - a file beside us


def _training_job(name: str, home: Path, command: Sequence[str]) -> Manifest:
    worker = {
        "containers": [
            {
                "name": "main",
                "image": TRAINING,
                "command": list(command),
                "volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint"}],
            }
        ],
        "volumes": [{"name": "checkpoint", "hostPath": {"path": str(home)}}],
    }
    launcher = {"containers": [{"name": "main", "image": FIRST}]}
    return {
        "apiVersion": f"{_GROUP}/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "annotations": _OPTED_IN},
        "spec": {
            "restartPolicy": "OnFailure",
            "etReplicaSpecs": {
                "launcher": {"replicas": 1, "template": _template(launcher)},
                "worker": {"replicas": 1, "minReplicas": 1, "maxReplicas": 1, "template": _template(worker)},
            },
        },
    }


def _template(spec: Manifest) -> Manifest:
    return {"metadata": {"annotations": _OPTED_IN}, "spec": {"terminationGracePeriodSeconds": 10, **spec}}
