"""A real control plane with many nodes and jobs, whose pods run nothing, and a supervisor for them.

Nodes are simulated by kwok, TrainingJobs by the stand-in for et-operator. Agents and processes only speak the protocol.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.clients import agents, streams
from benchmarks.harness import audit
from benchmarks.harness.client import ClientProcess
from benchmarks.harness.server import BenchmarkServer
from servicekit.kubernetes.server import ApiServer
from simulator.cloud.process import environment, spawn
from simulator.et_operator.crds import create_crds
from supervisor.domain.ids import JobName, cluster_job
from tests.testkit.controlplane.api import Api  # noqa: TC001
from tests.testkit.controlplane.binaries import BinaryProgram, binaries
from tests.testkit.controlplane.commands import KWOK_LABEL
from tests.testkit.controlplane.installed import InstalledPlace, place
from tests.testkit.controlplane.kwok import EXEC_VERSION
from tests.testkit.controlplane.namespace import GPU
from tests.testkit.controlplane.running import running
from tests.testkit.waiting import until

NAMESPACE = "training"
_JOBS = f"/apis/kai.alibabacloud.com/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
_JOB_LABEL = "benchmark/job"
_LAUNCHERS = "launchers"
_AT_ONCE = 16
_READY_SECONDS = 400.0
_REQUEST_SECONDS = 10.0

# kwok's 500 nodes must not use the cores that are measured. The scheduler's default limit is 50 pods per second.
_MANY_A_SECOND = {"kube-api-qps": 1000, "kube-api-burst": 2000}
PACE: Mapping[BinaryProgram, Mapping[str, object]] = {
    BinaryProgram.SCHEDULER: _MANY_A_SECOND,
    BinaryProgram.CONTROLLER_MANAGER: {
        **_MANY_A_SECOND,
        "node-monitor-grace-period": "300s",
        "node-monitor-period": "10s",
    },
    BinaryProgram.KWOK: {"node-lease-duration-seconds": 160},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkJob:
    """A TrainingJob on nodes of its own. With fewer than `least` workers it is stopped."""

    name: str
    nodes: tuple[str, ...]
    workers: int
    least: int

    @property
    def known_as(self) -> JobName:
        """Its name in the supervisor."""
        return cluster_job(NAMESPACE, "trainingjob", self.name)

    def worker(self, number: int) -> str:
        return f"{self.name}-worker-{number}"


class BenchmarkCluster:
    """The steps that a scenario takes. Created by `cluster()`."""

    def __init__(self, root: Path, here: InstalledPlace, jobs: Sequence[BenchmarkJob], gpus: int) -> None:
        self.root = root
        self.api: Api = here.api
        self.jobs = jobs
        self.server = BenchmarkServer(
            root / "server",
            tls=False,
            settings={"JOB_SUPERVISOR_STORE": "kubernetes", "KUBECONFIG": str(here.kubeconfig)},
        )
        self._here = here
        self._gpus = gpus
        self._stack = AsyncExitStack()
        self._agents: ClientProcess[agents.NoticeAnswer] | None = None

    async def start_jobs(self) -> None:
        """Create nodes and jobs and return once all pods run."""
        kubeconfig = str(self._here.plane.cluster.kubeconfig)
        await _define_jobs(kubeconfig)
        command = [sys.executable, "-m", "simulator", "et-operator", "--kubeconfig", kubeconfig, "--no-commands"]
        operator = spawn("et-operator", command, environment(self.root, {}), self.root / "operator.log")
        self._stack.push_async_callback(operator.stop)
        await self.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        await until(lambda: self.api.get(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"), "an account")
        nodes = [(node, job.name) for job in self.jobs for node in job.nodes]
        await run_for_each([(_LAUNCHERS, _LAUNCHERS), *nodes], self._make_node)
        await run_for_each(self.jobs, self._make_job)
        await until(self._all_run, "all jobs run", seconds=_READY_SECONDS)

    async def start_agents(self) -> None:
        """Connect an agent for every node."""
        client = self._agents = await ClientProcess.start("agents", agents.NoticeAnswer)
        self._stack.push_async_callback(client.end)
        nodes = [agents.LoadNode(node, self.server.tokens.agent(node)) for job in self.jobs for node in job.nodes]
        await client.request(agents.AgentsSetup(self.server.endpoints.grpc, None, nodes))

    async def start_processes(self, uids: Mapping[str, str], each_job: int) -> ClientProcess[streams.Arrivals]:
        """Open streams for the first processes of every job and return once each has a line."""
        client = await ClientProcess.start("streams", streams.Arrivals)
        self._stack.push_async_callback(client.end)
        address = self.server.endpoints.http_address
        groups = [
            streams.StreamGroup(
                job.known_as, self.token(job, uids[job.known_as]), [job.worker(rank) for rank in range(each_job)]
            )
            for job in self.jobs
        ]
        await client.request(streams.StreamsSetup(address.host, address.port, None, groups))
        arrivals = await client.request(streams.StreamsReady(_READY_SECONDS))
        if arrivals.waiting:
            raise AssertionError(f"{arrivals.waiting} streams have received no line")
        return client

    def token(self, job: BenchmarkJob, uid: str) -> str:
        """Return the token of the processes of a job's first run."""
        return self.server.tokens.process(job.known_as, uid, 1)

    async def acknowledge(self, job: BenchmarkJob, uid: str, generation: int) -> None:
        """Report that its rank 0 has saved and left."""
        report = {
            "process": f"{job.known_as}-0",
            "host": job.worker(0),
            "rank": 0,
            "step": 1,
            "run": 1,
            "generation": generation,
            "kind": "left",
        }
        url = f"{self.server.endpoints.http}/v1/processes/report"
        headers = {"Authorization": f"Bearer {self.token(job, uid)}"}
        async with aiohttp.request("POST", url, json=report, headers=headers) as answer:
            answer.raise_for_status()

    async def start_second(self) -> BenchmarkServer:
        """Start another supervisor that stands by."""
        second = self.server.second(self.root / "second")
        self._stack.push_async_callback(second.stop)
        second.launch()
        await second.until_standby()
        return second

    def notice(self, nodes: Sequence[str], over: float, seconds_left: float) -> None:
        """Send notices for these nodes, evenly over `over` seconds."""
        self._client.send(agents.SendNotice(list(nodes), over, seconds_left))

    async def until_durable(self) -> list[agents.NoticeSent]:
        """Return when all notices of the last call are durable."""
        return (await self._client.receive()).sent

    async def close(self) -> None:
        await self._stack.aclose()

    @property
    def _client(self) -> ClientProcess[agents.NoticeAnswer]:
        if self._agents is None:
            raise AssertionError("start the agents first")
        return self._agents

    async def _make_node(self, node: tuple[str, str]) -> None:
        name, job = node
        capacity = {"cpu": "96", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "250", GPU: str(self._gpus)}
        labels = {**KWOK_LABEL, "kubernetes.io/hostname": name, _JOB_LABEL: job}
        status = {"capacity": capacity, "allocatable": capacity}
        await self.api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "status": status})

    async def _make_job(self, job: BenchmarkJob) -> None:
        files = self.root / "launchers" / job.name
        files.mkdir(parents=True)
        execs = {"execs": [{"local": {"envs": [{"name": "EDL", "value": str(files)}]}}]}
        await self.api.create(
            f"/apis/{EXEC_VERSION}/namespaces/{NAMESPACE}/execs",
            {
                "apiVersion": EXEC_VERSION,
                "kind": "Exec",
                "metadata": {"name": f"{job.name}-launcher"},
                "spec": execs,
            },
        )
        await self.api.create(_JOBS, _manifest(job))

    async def _all_run(self) -> bool:
        found = (await self.api.get(_JOBS))["items"]
        return all(one.get("status", {}).get("phase") == "Running" for one in found)


@asynccontextmanager
async def cluster(root: Path, jobs: Sequence[BenchmarkJob], gpus: int) -> AsyncIterator[BenchmarkCluster]:
    """Start a control plane with nodes, and prepare a supervisor that is not started yet.

    Raises:
        NoGo: There is no control plane, and none can be built here.
        BinaryNotBuilt: It is not built yet.
    """
    programs = binaries()
    # Its programs end with this thread, so start it before anything else.
    with running(
        programs, root / "controlplane", {**PACE, BinaryProgram.API_SERVER: audit.flags(root / "audit")}
    ) as plane:
        async with AsyncExitStack() as stack:
            one = BenchmarkCluster(root, await stack.enter_async_context(place(plane)), jobs, gpus)
            stack.push_async_callback(one.server.stop)
            stack.push_async_callback(one.close)
            yield one


async def _define_jobs(kubeconfig: str) -> None:
    server = await ApiServer.connect(kubeconfig, _REQUEST_SECONDS)
    try:
        await create_crds(server)
    finally:
        await server.close()


async def run_for_each(items: Iterable[Any], do: Callable[[Any], Awaitable[None]]) -> None:
    """Call `do` for all items, some in parallel."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(item: Any) -> None:
        async with gate:
            await do(item)

    async with asyncio.TaskGroup() as group:
        for item in items:
            group.create_task(one(item))


def _manifest(job: BenchmarkJob) -> Mapping[str, Any]:
    numbers = {"gpus": 1, "maxWorkers": job.workers, "minWorkers": job.least, "workers": job.workers}
    env = [{"name": name, "value": str(value)} for name, value in numbers.items()]
    command = (
        "horovodrun -np $((${workers}*${gpus})) --host-discovery-script /etc/edl/discover_hosts.sh python train.py"
    )

    def template(where: str, **container: object) -> Mapping[str, Any]:
        one = {"name": "et", "image": "none", "env": env, **container}
        return {"spec": {"nodeSelector": {_JOB_LABEL: where}, "containers": [one]}}

    worker = {
        "replicas": job.workers,
        "minReplicas": job.least,
        "maxReplicas": job.workers,
        "template": template(job.name, resources={"limits": {GPU: "1"}}),
    }
    launcher = {"replicas": 1, "template": template(_LAUNCHERS, command=["sh", "-c", command])}
    return {
        "apiVersion": "kai.alibabacloud.com/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": job.name, "annotations": {"job-supervisor.kube-ai.io/managed-by-job-supervisor": "true"}},
        "spec": {
            "restartPolicy": "OnFailure",
            "cleanPodPolicy": "Running",
            "etReplicaSpecs": {"launcher": launcher, "worker": worker},
        },
    }
