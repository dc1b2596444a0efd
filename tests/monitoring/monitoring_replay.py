"""Replays a piece of the recorded trace with real processes, which a real Prometheus scrapes.

Afterwards a second job is held still, so that a reclaim would miss its deadline.
"""

import asyncio
import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp

from charts.files import CHART
from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from simulator.cloud.nodes import worker_pids
from simulator.cloud.process import TooLate
from simulator.cloud.schedule import ScheduledNotice
from simulator.cloud.trace import Node
from simulator.events import JobEventKind
from simulator.guarantees import GuaranteeCosts
from simulator.harness import ReplayWorld, ServiceSettings, world
from simulator.scenarios import ScenarioOptions, ScenarioPart, scenarios
from simulator.services import ServedJobPlan
from simulator.verdict import ReplayVerdict
from supervisor.observability.metrics.wiring import ClusterSources, Metrics
from supervisor.refusals import Refusals
from tests.monitoring.monitoring_programs import MonitoringProgram
from tests.monitoring.monitoring_servers import (
    SCRAPE_SECONDS,
    AlertReceiver,
    Prometheus,
    alertmanager,
    prometheus,
    receiver,
)
from tests.node_agent.keeper.keeper_process import keeper as state_keeper
from tests.node_agent.keeper.keeper_process import listening
from tests.node_agent.keeper.keeper_world import MIB

RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
# What the demo's training takes at most, on a busy machine.
_COSTS = GuaranteeCosts(step=0.5, checkpoint=0.5)
_LISTENING = re.compile(rb"^(?=.*metrics\.listening).*(127\.0\.0\.1:[0-9]+)", re.MULTILINE)
_LOOK_SECONDS = 0.2
_SETTLED_SCRAPES = 4
LATE_ALERTS = {"JobSupervisorStopNearDeadline", "JobSupervisorLateStops"}
_LATE_LEAD = 8.0
_LATE_SECONDS = 25.0


@dataclass(frozen=True, slots=True)
class MonitoringTruth:
    verdict: ReplayVerdict
    withdrawn: int
    ended: float
    """Unix seconds: all of that has been scraped by then."""
    closed: float
    """The end of everything, with all still there."""


@dataclass(frozen=True, slots=True)
class Recording:
    prometheus: Prometheus
    truth: MonitoringTruth
    begin: float
    alerts: Mapping[str, Any]
    """The names of the alerts that Alertmanager sent."""


@dataclass(frozen=True, slots=True)
class _Standby:
    """The metrics that only a supervisor on a cluster has, set by hand on the product's own counters."""

    address: str
    metrics: Metrics
    events: Counter[str]

    def works(self) -> None:
        self.metrics.on_review("shaped", 0.002)
        self.events["sent"] += 1


@contextmanager
def recorded(programs: Mapping[MonitoringProgram, Path]) -> Iterator[Recording]:
    """Play all of it; Prometheus runs as long as the context lasts."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="monitoring-")))
        url, heard = stack.enter_context(receiver())
        manager = stack.enter_context(alertmanager(programs[MonitoringProgram.ALERTMANAGER], root, url))
        server = stack.enter_context(prometheus(programs[MonitoringProgram.PROMETHEUS], root, RULES, manager))
        begin = time.time()
        truth = asyncio.run(_play(root / "world", server, heard))
        yield Recording(server, truth, begin, heard.firing())


async def _play(root: Path, server: Prometheus, heard: AlertReceiver) -> MonitoringTruth:
    [scenario] = scenarios(ScenarioOptions(part=ScenarioPart.CI, leads=(30.0,)), _COSTS)
    measured = "127.0.0.1:0"
    settings = ServiceSettings({"JOB_SUPERVISOR_METRICS_ADDRESS": measured}, {"NODE_AGENT_METRICS_ADDRESS": measured})
    async with (
        world(root, scenario.schedule.present, settings=settings) as one,
        _of_a_cluster() as other,
        _keeper(root) as keeper,
    ):
        others = {other.address: "supervisor", keeper: "keeper"}
        following = asyncio.create_task(_follow(one, server, other, others), name="targets")
        try:
            job = one.start_job(replace(scenario.job, job_arguments=(*scenario.job.job_arguments, "--say-steps")))
            await one.until_training(job, len(scenario.schedule.present))
            await _stranger(one)
            await one.replay(scenario.schedule)
            assert await job.wait(120) == 0, job.child.tail()
            await asyncio.sleep(_SETTLED_SCRAPES * SCRAPE_SECONDS)
            withdrawn = sum(event.kind is JobEventKind.NOTICE_WITHDRAWN for event in one.events(job))
            verdict, ended = one.verdict(job), time.time()
            await _miss_a_deadline(one, heard)
            await asyncio.sleep(_SETTLED_SCRAPES * SCRAPE_SECONDS)
            return MonitoringTruth(verdict, withdrawn, ended, time.time())
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def _stranger(one: ReplayWorld) -> None:
    url = f"{one.supervisor.endpoints.http}/v1/status"
    async with aiohttp.ClientSession() as session, session.get(url, headers={"Authorization": "Bearer none"}) as said:
        assert said.status == 401


async def _miss_a_deadline(one: ReplayWorld, heard: AlertReceiver) -> None:
    """A host goes whose job cannot do without it, and whose processes are stuck."""
    nodes = [Node(node) for node in sorted((await one.status()).connected())]
    job = one.start_job(ServedJobPlan(len(nodes), len(nodes), name="stuck", steps=10_000, step_seconds=0.2))
    await one.until_training(job, len(nodes))
    ours = {left.pid for left in one.leftovers()}
    stuck = [pid for node in nodes for pid in worker_pids(one.paths, node) if pid in ours]
    _signal(stuck, signal.SIGSTOP)
    try:
        await one.play([ScheduledNotice(0, nodes[-1], _LATE_LEAD, "late")])
        # What has not fired by then is missed where it is asked for.
        with suppress(TooLate):
            await one.until(
                lambda _: heard.firing().keys() >= LATE_ALERTS, "alerts about a late checkpoint", _LATE_SECONDS
            )
    finally:
        _signal(stuck, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@asynccontextmanager
async def _of_a_cluster() -> AsyncIterator[_Standby]:
    clock = Clock()
    events = Counter({"sent": 0, "aggregated": 0, "dropped": 0, "failed": 0})
    metrics = Metrics(version("elastic-job-supervisor"), Refusals(), Bulkhead(Clock()), clock)
    metrics.for_leader(lambda: False, ClusterSources(events=lambda: events))
    async with metrics.server(Address("127.0.0.1", 0)).serving() as address:
        yield _Standby(str(address), metrics, events)


@asynccontextmanager
async def _keeper(root: Path) -> AsyncIterator[str]:
    """A state keeper that has a part and has refused one; yields where it serves its metrics."""
    async with state_keeper(root / "states") as running, aiohttp.ClientSession() as session:
        url = f"http://{await listening(running)}/v1/states/{'5a' * 32}/0"
        for size, status in ((4 * MIB, 201), (128 * MIB, 507)):
            async with session.put(url, data=BytesIO(bytes(size)), headers={"Keep-Seconds": "600"}) as answer:
                assert answer.status == status
        yield await listening(running, "metrics.listening")


async def _follow(one: ReplayWorld, server: Prometheus, other: _Standby, others: Mapping[str, str]) -> None:
    """Have everybody scraped that has said where it serves its metrics, as long as it lives."""
    while True:
        server.scrape({**_targets(one), **others})
        other.works()
        await asyncio.sleep(_LOOK_SECONDS)


def _targets(one: ReplayWorld) -> dict[str, str]:
    logs = dict.fromkeys(one.paths.log("any").parent.glob("agent-*.log"), "agent")
    logs[one.paths.log("supervisor")] = "supervisor"
    found = {path: _LISTENING.findall(path.read_bytes()) for path in logs if path.exists()}
    return {addresses[-1].decode(): logs[path] for path, addresses in found.items() if addresses}
