"""A whole world on one machine, for the demo and for end-to-end tests.

    async with world(directory, ["node1", "node2", "node3"]) as w:
        job = w.start_job(JobPlan(min_workers=2, max_workers=3, steps=100))
        await w.until_training(job, workers=3)
        await w.play([Notice(at=0, node=Node("node2"), lead=6, group="g"), Kill(at=6, node=Node("node2"))])
        assert await job.wait(60) == 0
        assert w.verdict(job).ok

Tests can break everything: `await w.supervisor.kill()` and `.start()` (same ports, same data) or `.stop()` (returns
the seconds it took), `await w.nodes.agent(node).kill()` and `w.nodes.start_agent(node)`, and `w.provider.notice`,
`.withdraw`, `.kill`, `.add`. A second job is another `start_job` with another name.
"""

import asyncio
import signal
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import aiohttp

from simulator import status as supervisor_status
from simulator.certificates import SimulatedAuthority
from simulator.cloud import process
from simulator.cloud.dialects import SimulatedCloud
from simulator.cloud.metadata import AnswerMode, MetadataServer
from simulator.cloud.nodes import SimulatedNodes
from simulator.cloud.observer import observe
from simulator.cloud.paths import CloudPaths
from simulator.cloud.process import CloudChild, Leftover, TooLate
from simulator.cloud.provider import Provider
from simulator.cloud.replay import play, replay
from simulator.cloud.schedule import ReclaimSchedule, Step
from simulator.cloud.trace import Node
from simulator.events import EventLog, JobEvent, JobEventKind, read
from simulator.judge import judge
from simulator.model import reference
from simulator.services import JobProcess, ServedJobPlan, SupervisorProcess, agent_command, start_job
from simulator.status import ReadStatus, StatusUnavailable
from simulator.verdict import Expectations, ReplayVerdict, VerdictBounds

T = TypeVar("T")

# Reading all events of a long run takes about 50 ms.
POLL_SECONDS = 0.1
# A launcher ends its workers within ten seconds of a SIGTERM; kubeai-run says goodbye afterwards.
JOB_STOP_SECONDS = 20.0
# The first SIGTERM to kubeai-run lets the job save, which needs a supervisor. The second one does not wait for that.
JOB_SAVE_SECONDS = 5.0


class ProcessesLeft(AssertionError):  # noqa: N818 - the name describes the state
    """A process of the world survived its stop."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Extra environment variables of a world's services, for each of their starts."""

    supervisor: Mapping[str, str] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)


class ReplayWorld:
    """The running services of a world, and the operations on them. Created by `world()`."""

    def __init__(
        self,
        root: Path,
        mode: AnswerMode = AnswerMode.PLAIN,
        cloud: SimulatedCloud = SimulatedCloud.ALIYUN,
        *,
        tls: bool = False,
        settings: ServiceSettings | None = None,
    ) -> None:
        settings = settings or ServiceSettings()
        self.paths = CloudPaths(root)
        self.authority = SimulatedAuthority(self.paths.tls) if tls else None
        self.supervisor = SupervisorProcess(self.paths, self.authority, settings.supervisor)
        self.metadata = MetadataServer(mode, cloud=cloud)
        self.nodes = SimulatedNodes(
            self.paths,
            lambda node: agent_command(node, self.supervisor, self.metadata.url_of(node), self.paths, cloud),
            settings.agents,
        )
        self._truth = EventLog(self.paths.truth, "cloud")
        self.provider = Provider(self.metadata, self.nodes, self._truth)
        self.jobs: list[JobProcess] = []
        self._observers: list[asyncio.Task[None]] = []
        self._http: aiohttp.ClientSession | None = None
        self._viewer = ""

    def start_job(self, plan: ServedJobPlan, variables: Mapping[str, str] | None = None) -> JobProcess:
        """Start a job under kubeai-run. `variables` are added to its environment."""
        job = start_job(plan, self.supervisor, self.paths, variables or {})
        self.jobs.append(job)
        self._observers.append(asyncio.create_task(self._observe(job), name=f"observe {plan.name}"))
        return job

    async def status(self) -> ReadStatus:
        """Return the supervisor's status.

        Raises:
            StatusUnavailable: There is no answer now.
        """
        self._http = self._http or self._session()
        self._viewer = self._viewer or self.supervisor.tokens().viewer()
        return await supervisor_status.fetch(self._http, self.supervisor.endpoints.http, self._viewer)

    async def until(self, condition: Callable[[ReadStatus], bool], what: str, seconds: float = 60.0) -> ReadStatus:
        """Wait until the supervisor's status fulfils a condition. An unavailable supervisor is waited for as well.

        Raises:
            TooLate: It does not within `seconds`.
        """

        async def poll() -> ReadStatus | None:
            with suppress(StatusUnavailable):
                latest = await self.status()
                return latest if condition(latest) else None
            return None

        return await _until(poll, what, seconds)

    async def until_event(
        self, job: JobProcess, condition: Callable[[Sequence[JobEvent]], bool], what: str, seconds: float = 60.0
    ) -> list[JobEvent]:
        """Wait until the job's events fulfil a condition.

        Raises:
            TooLate: They do not within `seconds`.
        """

        async def poll() -> list[JobEvent] | None:
            events = job.events()
            return events if condition(events) else None

        return await _until(poll, what, seconds)

    async def until_training(self, job: JobProcess, workers: int, seconds: float = 60.0) -> None:
        """Wait until all members of a ring of this size have applied a step.

        Raises:
            TooLate: They have not within `seconds`.
            ProcessEnded: The job ended instead.
        """

        def trains(events: Sequence[JobEvent]) -> bool:
            job.child.check()
            return training(events) == workers

        await self.until_event(job, trains, f"{job.plan.name} to train with {workers} workers", seconds)

    async def play(self, steps: Sequence[Step]) -> None:
        """Perform the steps, each `at` seconds from now."""
        await play(self.provider, steps)

    async def replay(self, schedule: ReclaimSchedule) -> None:
        """Perform a schedule and record that the scenario has ended."""
        await replay(self.provider, schedule, self._truth)

    def end_scenario(self) -> None:
        """Record that nothing more will happen to the nodes."""
        self._truth.write(JobEventKind.SCENARIO_ENDED)

    def events(self, job: JobProcess) -> list[JobEvent]:
        """Return the truth and the events of the job's processes, in order."""
        return sorted([*read(self.paths.truth), *job.events()], key=lambda event: event.t)

    def verdict(self, job: JobProcess, bounds: VerdictBounds | None = None) -> ReplayVerdict:
        """Judge a job that is over.

        `bounds` apply to a job that has the world to itself, if nothing but the cloud disturbs the product.
        """
        plan = job.plan
        expectations = Expectations(
            steps=plan.steps,
            digest=reference(plan.steps, plan.seed),
            min_workers=plan.min_workers,
            max_workers=plan.max_workers,
            worker_multiple=plan.worker_multiple,
            agreed=plan.agrees,
            bounds=bounds,
        )
        return judge(self.events(job), expectations)

    def spawn(self, name: str, command: Sequence[str]) -> CloudChild:
        """Start another process of this world. The caller must end it."""
        return process.spawn(name, command, process.environment(self.paths.root, {}), self.paths.log(name))

    def leftovers(self) -> list[Leftover]:
        """Return all running processes of this world."""
        return process.leftovers(self.paths.root)

    async def stop_jobs(self) -> None:
        """Stop all running jobs and their observers."""
        children = [job.child for job in self.jobs]
        for child in children:
            child.send(signal.SIGTERM)
        with suppress(TooLate):
            for child in children:
                await child.wait(JOB_SAVE_SECONDS)
        for child in children:
            await child.stop(JOB_STOP_SECONDS)
        observers, self._observers = self._observers, []
        for observer in observers:
            observer.cancel()
        for observer in observers:
            with suppress(asyncio.CancelledError):
                await observer

    async def close(self) -> None:
        """Stop everything: jobs, agents, supervisor, metadata. A failure of one does not prevent the others.

        Raises:
            ProcessesLeft: A process survived that and was killed.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._sweep)
            stack.callback(self._truth.close)
            stack.push_async_callback(self.metadata.stop)
            stack.push_async_callback(self.supervisor.stop)
            if self._http is not None:
                stack.push_async_callback(self._http.close)
            stack.push_async_callback(self.nodes.close)
            stack.push_async_callback(self.stop_jobs)

    async def _sweep(self) -> None:
        left = self.leftovers()
        for leftover in left:
            process.end(leftover.pid, self.paths.root)
        if left:
            raise ProcessesLeft("outlived their stop: " + "; ".join(f"{one.pid} {one.command}" for one in left))

    def _session(self) -> aiohttp.ClientSession:
        trusted = True if self.authority is None else ssl.create_default_context(cafile=str(self.authority.ca_file))
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted))

    async def _observe(self, job: JobProcess) -> None:
        with job.log("observer") as log:
            await observe(job.exclusions, log)


@asynccontextmanager
async def world(  # noqa: PLR0913 - callers name the few that they set
    root: Path,
    nodes: Sequence[str],
    mode: AnswerMode = AnswerMode.PLAIN,
    cloud: SimulatedCloud = SimulatedCloud.ALIYUN,
    *,
    tls: bool = False,
    settings: ServiceSettings | None = None,
) -> AsyncIterator[ReplayWorld]:
    """Create a world with these nodes and a supervisor that all their agents have reached, and end it afterwards.

    Args:
        root: An empty directory for everything in the world.
        nodes: Names of the initial nodes.
        mode: Whether the metadata service requires a token.
        cloud: The cloud whose metadata service is simulated.
        tls: Whether the supervisor has a certificate, which the world's authority can rotate.
        settings: Extra environment variables of its services.

    Raises:
        ProcessesLeft: At the end, a process survived its stop.
    """
    one = ReplayWorld(root, mode, cloud, tls=tls, settings=settings)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(one.close)
        await one.metadata.start()
        await one.supervisor.start()
        await one.provider.populate([Node(node) for node in nodes])
        await one.until(lambda status: status.connected() >= set(nodes), "all agents to be connected")
        yield one


def training(events: Sequence[JobEvent]) -> int:
    """Return the size of the last ring once all its members have applied a step; 0 before."""
    formed = [event for event in events if event.kind is JobEventKind.RING_FORMED]
    if not formed:
        return 0
    last = formed[-1]
    ring = (last.integer("run"), last.integer("epoch"))
    ranks = {
        event.integer("rank")
        for event in events
        if event.kind is JobEventKind.STEP_APPLIED and (event.integer("run"), event.integer("epoch")) == ring
    }
    size = len(last.texts("hosts"))
    return size if len(ranks) == size else 0


async def _until(poll: Callable[[], Awaitable[T | None]], what: str, seconds: float) -> T:
    deadline = time.monotonic() + seconds
    while (found := await poll()) is None:
        if time.monotonic() > deadline:
            raise TooLate(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(POLL_SECONDS)
    return found
