"""A cluster and everything around it: nodes with metadata and agents, the operator, what its pods run, a supervisor.

    async with world(plane, tmp_path / "world", Given()) as w:
        await w.nodes("n0", "n1", "n2", "n3", gpus=2)
        job = await w.job("j", JobPlan(workers=8, min_workers=2, steps=100))
        await w.training(job, workers=8)
        await w.reclaim(["n1", "n2"], lead=7)
        await w.jobs.phase("j", "Succeeded")
        assert w.verdict(job).ok

Control plane, supervisor, agents, launchers and training processes are real; operator, node runtime and cloud are the
simulator's, in the test's own process.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from servicekit.kubernetes.server import ApiServer
from simulator.certificates import SimulatedAuthority
from simulator.cloud import process
from simulator.cloud.metadata import MetadataServer
from simulator.cloud.paths import CloudPaths
from simulator.cloud.process import CloudChild
from simulator.cloud.trace import Node
from simulator.cluster.identity import PodIdentity
from simulator.cluster.runtime import NodeRuntime
from simulator.et_operator.crds import create_crds
from simulator.et_operator.operator import EtOperator
from simulator.et_operator.settings import QUICK, OperatorSettings
from simulator.events import JobEvent, JobEventKind, read
from simulator.harness import ServiceSettings, training
from simulator.judge import judge
from simulator.model import reference
from simulator.services import SupervisorProcess, agent_command
from simulator.status import StatusUnavailable, fetch
from simulator.verdict import Expectations, ReplayVerdict
from tests.controlplane.operator.operator_jobs import OperatorJobs
from tests.testkit.controlplane.installed import InstalledPlace, job_path, place
from tests.testkit.controlplane.namespace import GPU, OWNER_LABEL, Namespace, fresh_namespace
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import PATIENCE, until

AUDIENCE = "job-supervisor.kube-ai.io"
OPTED_IN = {"job-supervisor.kube-ai.io/managed-by-job-supervisor": "true"}
_ORDINARY = {"line.test/ordinary": "true"}
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LineJobPlan:
    """A TrainingJob as its user would describe it; one worker a GPU.

    Attributes:
        workers: How many it asks for.
        min_workers: Fewest it can train on.
        steps: Training steps until it is done.
        step_seconds: How long one step takes at least.
        annotations: Of the job and all its pods.
        worker: More of the worker's part of the spec.
        job_arguments: More options for the training script.
    """

    workers: int
    min_workers: int = 1
    steps: int = 100
    step_seconds: float = 0.05
    annotations: Mapping[str, str] = field(default_factory=lambda: OPTED_IN)
    worker: Mapping[str, object] = field(default_factory=dict)
    job_arguments: str = ""


@dataclass(frozen=True, slots=True)
class LineJob:
    name: str
    plan: LineJobPlan
    namespace: str
    home: Path

    def events(self) -> list[JobEvent]:
        return read(self.home / "events")

    @property
    def checkpoint(self) -> Path:
        """The path of rank 0's checkpoint."""
        return self.home / "checkpoint"


class LineWorld:
    def __init__(
        self, plane: ControlPlane, root: Path, here: InstalledPlace, namespace: Namespace, given: ServiceSettings
    ) -> None:
        self.api = here.api
        self.here = here
        self.namespace = namespace
        self.jobs = OperatorJobs(here.api, namespace, root / "unused")
        self.paths = CloudPaths(root)
        self.metadata = MetadataServer()
        self.supervisor: SupervisorProcess | None = None
        self._plane = plane
        self._stack = AsyncExitStack()
        self._agents: dict[str, CloudChild] = {}
        self._killed: list[CloudChild] = []
        self._agent_settings = given.agents
        self._supervisor_settings: Mapping[str, str] = {}
        self._server: ApiServer | None = None
        self._runtime: NodeRuntime | None = None

    @property
    def runtime(self) -> NodeRuntime:
        assert self._runtime is not None
        return self._runtime

    async def stand_by(self) -> CloudChild:
        """One more supervisor, on the first one's ports as behind one Service; returns once it stands by."""
        assert self.supervisor is not None
        serves = self.supervisor.endpoints
        variables = {
            **self._supervisor_settings,
            "JOB_SUPERVISOR_DATA_DIR": str(self.paths.supervisor),
            "JOB_SUPERVISOR_GRPC_ADDRESS": serves.grpc,
            "JOB_SUPERVISOR_HTTP_ADDRESS": serves.http.partition("://")[2],
            "JOB_SUPERVISOR_FAILPOINT": "",
        }
        env = process.environment(self.paths.root, variables)
        command = [process.script("elastic-job-supervisor"), "serve"]
        child = process.spawn("standby", command, env, self.paths.log("standby"))
        self._stack.push_async_callback(process.stop_all, [child], _STOP_SECONDS)

        async def standing_by() -> bool:
            child.check()
            return "supervisor.standing_by" in child.log.read_text(encoding="utf-8")

        await until(standing_by, "the other supervisor stands by")
        return child

    # Nodes.

    async def nodes(self, *names: str, gpus: int = 8) -> list[str]:
        """Nodes arrive, each with metadata and, where there is a supervisor, an agent; returns their full names."""
        return [await self.add_node(name, gpus) for name in names]

    async def add_node(self, name: str, gpus: int = 8) -> str:
        full = await self.namespace.node(name, gpus)
        self.runtime.revive_node(full)
        self.metadata.add(Node(full))
        if self.supervisor is not None:
            self.start_agent(full)
        return full

    def start_agent(self, node: str) -> CloudChild:
        assert self.supervisor is not None
        how = agent_command(Node(node), self.supervisor, self.metadata.url_of(Node(node)), self.paths)
        env = process.environment(self.paths.root, {**self._agent_settings, **how.env})
        child = process.spawn(f"agent of {node}", how.command, env, self.paths.log(f"agent-{node}"))
        self._agents[node] = child
        return child

    def notice(self, nodes: Iterable[str], lead: float, group: str = "group") -> float:
        """The cloud announces that it takes these nodes away in so many seconds; returns the instant, Unix seconds."""
        deadline = time.time() + lead
        for node in nodes:
            self.runtime.truth.notice(node, deadline, group)
            self.metadata.notice(Node(node), deadline)
        return deadline

    def withdraw(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.runtime.truth.withdraw(node)
            self.metadata.withdraw(Node(node))

    async def take_away(self, nodes: Sequence[str]) -> None:
        """The nodes are gone, with everything on them; the cluster learns of it at once and forgets their pods.

        Kubernetes' own garbage collector would take forty seconds more for the pods.
        """
        await self.vanish(nodes)
        for node in nodes:
            await self._forget_pods(node)

    async def vanish(self, nodes: Sequence[str]) -> None:
        """The same, but that nobody tells the cluster of their pods."""
        for node in nodes:
            self.runtime.kill_node(node)
            self.metadata.remove(Node(node))
            if (agent := self._agents.pop(node, None)) is not None:
                agent.send(signal.SIGKILL)
                self._killed.append(agent)
        for node in nodes:
            await self.api.delete(f"/api/v1/nodes/{node}")

    async def reclaim(self, nodes: Sequence[str], lead: float, group: str = "group") -> None:
        deadline = self.notice(nodes, lead, group)
        await asyncio.sleep(max(0.0, deadline - time.time()))
        await self.take_away(nodes)

    async def cordon(self, nodes: Iterable[str]) -> None:
        """Nothing more is scheduled onto them, as the termination handlers of many clouds have it."""
        for node in nodes:
            await self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})

    async def node_of(self, pod: str) -> str:
        return str((await self.namespace.get_pod(pod))["spec"]["nodeName"])

    # What the supervisor makes of it, as kubectl shows it.

    async def supervised(self, job: LineJob) -> Any:
        """The job's SupervisedJob; 404 until there is one."""
        return await self.api.get(job_path(f"trainingjob.{job.name}", job.namespace))

    async def decided(self, job: LineJob, phase: str, seconds: float = PATIENCE) -> Any:
        async def reached() -> Any:
            one = await self.supervised(job)
            return one if one.get("status", {}).get("decision", {}).get("phase") == phase else None

        return await until(reached, f"{job.name} is {phase} to the supervisor", seconds=seconds)

    async def excluded(self, job: LineJob, hosts: Iterable[str], seconds: float = PATIENCE) -> None:
        """Return when the discovery script of the job's launcher leaves out just these hosts."""
        wanted = sorted(hosts)

        def left_out(events: Sequence[JobEvent]) -> bool:
            changes = [event.texts("hosts") for event in events if event.kind is JobEventKind.EXCLUSIONS_CHANGED]
            return bool(changes) and sorted(changes[-1]) == wanted

        await self.event(job, left_out, f"{', '.join(wanted)} are excluded", seconds)

    async def noticed(self, nodes: Iterable[str], seconds: float = PATIENCE) -> list[Any]:
        """The ReclaimNotices, once there is an active one for each of these nodes."""
        wanted = set(nodes)

        async def told() -> Any:
            notices = await self.here.notices()
            active = [each for each in notices if each.get("status", {}).get("state") == "active"]
            names = {each["spec"]["subject"]["name"] for each in active}
            return notices if names >= wanted else None

        return list(await until(told, f"notices for {', '.join(sorted(wanted))}", seconds=seconds))

    async def connected(self, seconds: float = PATIENCE) -> None:
        assert self.supervisor is not None
        viewer = self.supervisor.tokens().viewer()
        async with aiohttp.ClientSession() as http:

            async def all_of_them() -> bool:
                with suppress(StatusUnavailable):
                    seen = await fetch(http, self.supervisor.endpoints.http, viewer) if self.supervisor else None
                    return seen is not None and seen.connected() >= set(self._agents)
                return False

            await until(all_of_them, "all agents are connected", seconds=seconds)

    # Jobs.

    async def job(self, name: str, plan: LineJobPlan, jobs: OperatorJobs | None = None) -> LineJob:
        """Make a TrainingJob, as Arena would; here or in a neighbour's namespace, in any case on these nodes."""
        jobs = jobs or self.jobs
        namespace = jobs.namespace.name
        job = LineJob(name, plan, namespace, self.runtime.paths.job(namespace, name))
        spec = training_job(self.namespace.name, plan, job.checkpoint)
        await jobs.make(name, spec, annotations=plan.annotations)
        return job

    async def neighbour(self) -> OperatorJobs:
        namespace = await self._stack.enter_async_context(fresh_namespace(self._plane.cluster, self.api))
        return OperatorJobs(self.api, namespace, self.paths.root / "unused")

    async def training(self, job: LineJob, workers: int, seconds: float = PATIENCE) -> None:
        """Return when all members of a ring of so many have applied a step."""
        await self.event(job, lambda events: training(events) == workers, f"{workers} workers train", seconds)

    async def event(
        self, job: LineJob, condition: Callable[[Sequence[JobEvent]], bool], what: str, seconds: float = PATIENCE
    ) -> list[JobEvent]:
        async def look() -> list[JobEvent] | None:
            events = job.events()
            return events if events and condition(events) else None

        return await until(look, f"{job.name}: {what}", seconds=seconds) or []

    def verdict(self, job: LineJob) -> ReplayVerdict:
        plan = job.plan
        return judge(job.events(), Expectations(plan.steps, reference(plan.steps), plan.min_workers))

    def processes(self, word: str) -> list[int]:
        """The processes of this world whose command has that word in it."""
        return [one.pid for one in process.leftovers(self.paths.root) if word in one.command]

    def kill_processes(self, word: str) -> None:
        for pid in self.processes(word):
            process.end(pid, self.paths.root)

    # Life.

    async def open(self, supervisor: Mapping[str, str] | None, authority: SimulatedAuthority | None) -> None:
        self._stack.push_async_callback(self._sweep)
        self._server = await ApiServer.connect(str(self._plane.cluster.kubeconfig), 10.0)
        self._stack.push_async_callback(self._server.close)
        await create_crds(self._server)
        await self.metadata.start()
        self._stack.push_async_callback(self.metadata.stop)
        if supervisor is not None:
            settings = {"JOB_SUPERVISOR_STORE": "kubernetes", "KUBECONFIG": str(self.here.kubeconfig), **supervisor}
            self._supervisor_settings = settings
            self.supervisor = SupervisorProcess(self.paths, authority, settings)
            self._stack.push_async_callback(self.supervisor.stop)
            await self.supervisor.start()
        self._stack.push_async_callback(self._stop_agents)
        self._runtime = NodeRuntime(self._server, self.paths.root, self._identity(authority))
        self._run(self._runtime.run())
        self._run(EtOperator(self._server, OperatorSettings(QUICK)).run())
        # Launchers run on ordinary nodes, which nobody takes away.
        await self.namespace.node("ordinary", 0, _ORDINARY)

    async def close(self) -> None:
        await self._stack.aclose()

    def _identity(self, authority: SimulatedAuthority | None) -> PodIdentity | None:
        if self.supervisor is None:
            return None
        ca = authority.ca_file.read_text(encoding="utf-8") if authority else None
        return PodIdentity(self.supervisor.endpoints.http, AUDIENCE, ca)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._stack.push_async_callback(_ended, task)

    async def _stop_agents(self) -> None:
        await process.stop_all([*self._killed, *self._agents.values()], _STOP_SECONDS)

    async def _sweep(self) -> None:
        left = process.leftovers(self.paths.root)
        for leftover in left:
            process.end(leftover.pid, self.paths.root)
        assert not left, "outlived their stop: " + "; ".join(f"{one.pid} {one.command}" for one in left)

    async def _forget_pods(self, node: str) -> None:
        pods = await self.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")
        for pod in pods["items"]:
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            await self.api.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def training_job(home: str, plan: LineJobPlan, checkpoint: Path) -> dict[str, object]:
    """The spec, of the shape that Arena gives it: bounds in the environment and on the launcher's command line."""
    script = (
        f"python -m simulator.job --steps {plan.steps} --step-seconds {plan.step_seconds} --checkpoint {checkpoint}"
        f" {plan.job_arguments}"
    )
    command = (
        "horovodrun -np $((${workers}*${gpus})) --min-np $((${minWorkers}*${gpus})) --max-np $((${maxWorkers}*${gpus}))"
        f" --host-discovery-script /etc/edl/discover_hosts.sh {script}"
    )
    numbers = {"gpus": 1, "maxWorkers": plan.workers, "minWorkers": plan.min_workers, "workers": plan.workers}
    env = [{"name": name, "value": str(value)} for name, value in numbers.items()]

    def template(nodes: Mapping[str, str], **container: object) -> dict[str, object]:
        one = {"name": "et", "image": "none", "env": env, **container}
        spec = {"nodeSelector": {OWNER_LABEL: home, **nodes}, "containers": [one]}
        return {"metadata": {"annotations": plan.annotations}, "spec": spec}

    worker = {
        "replicas": plan.workers,
        "minReplicas": plan.min_workers,
        "maxReplicas": plan.workers,
        **plan.worker,
        "template": template({}, resources={"limits": {GPU: "1"}}),
    }
    launcher = {"replicas": 1, "template": template(_ORDINARY, command=["sh", "-c", command])}
    return {
        "restartPolicy": "OnFailure",
        "cleanPodPolicy": "Running",
        "etReplicaSpecs": {"launcher": launcher, "worker": worker},
    }


@asynccontextmanager
async def world(
    plane: ControlPlane,
    root: Path,
    given: ServiceSettings | None = None,
    authority: SimulatedAuthority | None = None,
) -> AsyncIterator[LineWorld]:
    """Everything around a control plane that this test alone uses.

    Args:
        plane: It.
        root: An empty directory.
        given: More settings of the supervisor and of each agent; None for a world without these.
        authority: Who signs the supervisor's certificate; None for a world without TLS.
    """
    async with place(plane) as here, fresh_namespace(plane.cluster, here.api) as namespace:
        one = LineWorld(plane, root, here, namespace, given or ServiceSettings())
        try:
            await one.open(given.supervisor if given else None, authority)
            yield one
        finally:
            await one.close()
