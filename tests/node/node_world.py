"""An installed chart, the operator, a training job, and a cloud that reclaims the node."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servicekit.kubernetes.server import ApiServer
from simulator.cloud.metadata import MetadataServer
from simulator.cloud.trace import Node
from simulator.et_operator.crds import create_crds
from simulator.et_operator.operator import EtOperator
from simulator.et_operator.settings import QUICK, OperatorSettings
from tests.chart import chart_page as page
from tests.chart.chart_rendering import NAMESPACE, RELEASE
from tests.node.node_ground import FIRST, TRAINING
from tests.node.node_names import names
from tests.node.node_running import ADDRESS, METADATA, NODE
from tests.testkit.controlplane.api import Api, Manifest, client
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

JOBS = "training"
HTTP_PORT = 8471
_AUDIENCE = "job-supervisor.kube-ai.io"
_OPTED_IN = {f"{_AUDIENCE}/managed-by-job-supervisor": "true"}
_GROUP = "kai.alibabacloud.com"
_TRAINING_JOBS = f"/apis/{_GROUP}/v1alpha1/namespaces/{JOBS}/trainingjobs"
_SUPERVISED_JOBS = f"/apis/job-supervisor.kube-ai.io/v1alpha1/namespaces/{JOBS}/supervisedjobs"
_WEBHOOK = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{RELEASE}"
_SUPERVISORS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}"
_EVENTS = f"/api/v1/namespaces/{JOBS}/events"
_NOTICES = "/apis/job-supervisor.kube-ai.io/v1alpha1/reclaimnotices"
_SECONDS = 120.0
TRAIN = ("python3", "/training/train.py", "/checkpoint")


@dataclass(frozen=True, slots=True)
class NodeWorld:
    api: Api
    metadata: MetadataServer
    ground: Path
    cluster: RunningCluster
    desk: Path
    """Of whoever has installed it."""
    stand_in: "StandIn"

    async def follow(self, line: str) -> str:
        return await asyncio.to_thread(page.follow, line, self.cluster, self.desk)

    def reclaim(self, deadline: float) -> None:
        """The cloud announces that it takes the node away then, in Unix seconds."""
        self.metadata.notice(Node(NODE), deadline)

    async def drill(self, pod: str, seconds: int) -> float:
        """Asks for a drill on a pod, which will seem to be reclaimed in so many seconds; returns the Unix time."""
        found = await self.api.get(f"/api/v1/namespaces/{JOBS}/pods/{pod}")
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": JOBS, "name": pod, "uid": found["metadata"]["uid"]}
        asked = {f"{_AUDIENCE}/simulated-lead-seconds": str(seconds)}
        event = {
            "metadata": {"generateName": f"{pod}-", "annotations": asked},
            "involvedObject": about,
            "reason": "SimulatedReclaim",
            "message": "a drill",
            "type": "Normal",
        }
        at = time.time()
        await self.api.create(_EVENTS, event)
        return at

    async def settle(self) -> None:
        """The jobs are deleted, and the cloud announces nothing any more; returns when all of that is so."""
        for job in (await self.api.get(_TRAINING_JOBS))["items"]:
            await self.api.delete(f"{_TRAINING_JOBS}/{job['metadata']['name']}")
            await self.no_pods(job["metadata"]["name"])
        self.metadata.withdraw(Node(NODE))

        async def none() -> bool:
            notices = (await self.api.get(_NOTICES))["items"]
            return all(each.get("status", {}).get("state") != "active" for each in notices)

        await until(none, "no notice is active", seconds=_SECONDS)

    async def train(self, name: str) -> Path:
        """A job with one worker on the node; returns where it saves, once it has made a step."""
        home = await self.start(name, TRAIN)
        await self.steps(name, home)
        return home

    async def start(self, name: str, command: Sequence[str]) -> Path:
        """A job whose worker runs that command, which is to save in /checkpoint; returns what that is on the node."""
        home = self.home(name)
        await self.api.create(_TRAINING_JOBS, training_job(name, home, command, _OPTED_IN))
        return home

    def home(self, name: str) -> Path:
        """The checkpoint directory of a job, on the node."""
        home = self.ground / "checkpoints" / name
        home.mkdir(parents=True)
        home.chmod(0o755)
        return home

    async def steps(self, name: str, home: Path) -> None:
        """Return when the job has made a step, and the supervisor knows that it runs."""
        await until(lambda: _exists(home / "step"), f"{name} trains", seconds=_SECONDS)
        await self.decided(name, "Running")

    async def decided(self, name: str, phase: str) -> Any:
        """The job as the supervisor has it, once its phase is that."""

        async def reached() -> Any:
            one = await self.api.get(f"{_SUPERVISED_JOBS}/trainingjob.{name}")
            return one if one.get("status", {}).get("decision", {}).get("phase") == phase else None

        return await until(reached, f"{name} is {phase} to the supervisor", seconds=_SECONDS)

    async def saved(self, home: Path) -> Mapping[str, Any]:
        """Return the checkpoint of the training process and its last directive."""
        await until(lambda: _exists(home / "checkpoint"), f"a checkpoint in {home}", seconds=_SECONDS)
        told: Mapping[str, Any] = json.loads((home / "checkpoint").read_bytes())
        return told

    async def supervisors(self, number: int) -> None:
        """So many are wanted; returns when all of them are ready, and others are gone."""
        await self.api.patch(_SUPERVISORS, {"spec": {"replicas": number}})
        await self.ready(number)

    async def ready(self, supervisors: int) -> None:
        """Return when so many supervisors are ready, no others are there, and the agent is ready too."""

        async def all_of_them() -> bool:
            pods = await self.pods(NAMESPACE, "app.kubernetes.io/component=supervisor")
            agents = await self.pods(NAMESPACE, "app.kubernetes.io/component=agent")
            # An agent is ready as long as a supervisor has acknowledged it.
            wanted = [*pods, *(agents if supervisors else [])]
            return len(pods) == supervisors and all(_is_ready(pod) for pod in wanted)

        await until(all_of_them, f"{supervisors} supervisors are ready", seconds=_SECONDS)

    async def more_steps(self, home: Path, number: int = 20) -> None:
        """Return when the job that saves there has made so many steps more."""
        before = _step(home)

        async def made() -> bool:
            return _step(home) >= before + number

        await until(made, f"steps in {home}", seconds=_SECONDS)

    async def pods(self, namespace: str, labels: str = "") -> list[Any]:
        found = await self.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=labels)
        return list(found["items"])

    async def no_pods(self, name: str) -> None:
        async def none() -> bool:
            return not await self.pods(JOBS, f"training-job-name={name}")

        await until(none, f"{name} has no pods", seconds=_SECONDS)

    async def address(self, pod: str) -> str:
        async def given() -> str:
            found = await self.api.get(f"/api/v1/namespaces/{JOBS}/pods/{pod}")
            return str(found["status"]["podIP"]) if _is_ready(found) else ""

        return await until(given, f"{pod} is ready", seconds=_SECONDS)


@asynccontextmanager
async def world(cluster: RunningCluster, ground: Path) -> AsyncIterator[NodeWorld]:
    """Everything, installed by the commands of the install page, and ready."""
    (ground / "desk").mkdir()
    desk = page.desk(ground / "desk")
    async with client(cluster) as api, _cloud() as metadata, _operator(cluster) as stand_in:
        await api.create("/api/v1/namespaces", {"metadata": {"name": JOBS}})
        here = NodeWorld(api, metadata, ground, cluster, desk, stand_in)
        with names(ADDRESS, cluster), _explained(ground):
            await _install(here)
            await _asked(api)
            yield here


@asynccontextmanager
async def _cloud() -> AsyncIterator[MetadataServer]:
    # For the agent, which has the node's network and no setting that says where metadata are.
    metadata = MetadataServer(host=METADATA, port=80)
    metadata.add(Node(NODE))
    await metadata.start()
    try:
        yield metadata
    finally:
        await metadata.stop()


class StandIn:
    """The stand-in for et-operator, which another operator can replace for a while."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(EtOperator(self._server, OperatorSettings(QUICK)).run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None


@asynccontextmanager
async def _operator(cluster: RunningCluster) -> AsyncIterator[StandIn]:
    server = await ApiServer.connect(str(cluster.kubeconfig), 10.0)
    stand_in = StandIn(server)
    try:
        await create_crds(server)
        stand_in.start()
        yield stand_in
    finally:
        await stand_in.stop()
        await server.close()


async def _asked(api: Api) -> None:
    """Return when the API server knows the webhook by the CA that the supervisors have made."""

    async def known() -> bool:
        hooks = (await api.get(_WEBHOOK))["webhooks"]
        return all(each["clientConfig"].get("caBundle") for each in hooks)

    await until(known, "the webhook's CA is told", seconds=_SECONDS)


async def _install(here: NodeWorld) -> None:
    """The page's section, to its last rollout."""
    for line in page.commands(page.INSTALL):
        await here.follow(line)


def _is_ready(pod: Any) -> bool:
    return ("Ready", "True") in {(each["type"], each["status"]) for each in pod["status"].get("conditions", ())}


@contextmanager
def _explained(ground: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        for log in sorted(Path("/var/log/pods").rglob("*.log")):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            error.add_note("\n".join([f"== {log.relative_to('/var/log/pods')}", *lines]))
        for log in sorted(ground.glob("*.log")):
            error.add_note("\n".join([f"== {log.name}", *log.read_text(errors="replace").splitlines()[-15:]]))
        raise


def _step(home: Path) -> int:
    return int((home / "step").read_text(encoding="utf-8") or 0)


async def _exists(path: Path) -> bool:
    return path.exists()  # noqa: ASYNC240 - a file beside us


def training_job(name: str, home: Path, command: Sequence[str], annotations: Mapping[str, str]) -> Manifest:
    """A job with one worker, which runs the command and finds that directory of the node at /checkpoint."""
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
    launcher = {"containers": [{"name": "et", "image": FIRST}]}
    return {
        "apiVersion": f"{_GROUP}/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "restartPolicy": "OnFailure",
            "etReplicaSpecs": {
                "launcher": {"replicas": 1, "template": _template(launcher, annotations)},
                "worker": {
                    "replicas": 1,
                    "minReplicas": 1,
                    "maxReplicas": 1,
                    "template": _template(worker, annotations),
                },
            },
        },
    }


def _template(spec: Manifest, annotations: Mapping[str, str]) -> Manifest:
    return {"metadata": {"annotations": annotations}, "spec": {"terminationGracePeriodSeconds": 10, **spec}}
