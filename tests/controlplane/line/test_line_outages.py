"""The API server is away while TrainingJobs' nodes are reclaimed: nobody is stopped by that."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from simulator.events import JobEvent, JobEventKind
from simulator.harness import ServiceSettings
from simulator.job import COMMIT_EVERY
from simulator.verdict import Failure
from tests.chaos.chaos_world import QUICK
from tests.controlplane.line.line_world import OPTED_IN, LineJobPlan, LineWorld, world
from tests.controlplane.operator.operator_jobs import names
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.outages import frozen
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long

OUTAGE = float(os.environ.get("LEADER_OUTAGE_SECONDS", "10"))
"""Longer than a lease and a time-out. Thirty seconds change nothing but the time that a test takes."""

SECONDS_TO_DECIDE = 5.0
"""After the outage, for everything that waited for its end."""

_STEP = 0.1
"""Seconds of training; the job is to last longer than the outage."""

_SETTINGS = {**QUICK.supervisor, "JOB_SUPERVISOR_STORE_TIMEOUT_SECONDS": "2"}
_MAX_WAIT = "job-supervisor.kube-ai.io/max-wait-time"
_STATUS = "job-supervisor.kube-ai.io/job-status"

Outage = Callable[[ControlPlane], AbstractAsyncContextManager[None]]


@pytest.fixture
async def one(own_controlplane: ControlPlane, tmp_path: Path) -> AsyncIterator[LineWorld]:
    """A world without nodes on a control plane that may be harmed."""
    async with world(own_controlplane, tmp_path / "world", ServiceSettings(_SETTINGS, QUICK.agents)) as here:
        yield here


@asynccontextmanager
async def silent(plane: ControlPlane) -> AsyncIterator[None]:
    with frozen(plane):
        yield


@asynccontextmanager
async def killed(plane: ControlPlane) -> AsyncIterator[None]:
    """It is restarted with the same data, and what etcd had from before is forgotten under everybody's watches."""
    plane.kill(BinaryProgram.API_SERVER)
    yield
    plane.compact()
    # A scheduler whose watch comes back later than ours still puts pods on nodes that are gone.
    plane.kill(BinaryProgram.SCHEDULER)
    for program in (BinaryProgram.API_SERVER, BinaryProgram.SCHEDULER):
        plane.launch(program)
        await asyncio.to_thread(plane.wait_ready, program)


@pytest.mark.parametrize("how", [silent, killed], ids=["silent", "killed"])
async def test_an_outage_in_the_middle_of_a_reclaim_stops_nobody(
    own_controlplane: ControlPlane, one: LineWorld, how: Outage
) -> None:
    """A process whose host ends meanwhile leaves in time; the STOP that is due comes when it is over."""
    await one.add_node("n0", 1)
    first, *others = await one.nodes("n1", "n2", "n3", gpus=1)
    await one.connected()
    job = await one.job(
        "j", LineJobPlan(workers=4, min_workers=2, steps=200 + round(OUTAGE / _STEP), step_seconds=_STEP)
    )
    await one.training(job, workers=4)
    [gone] = [name for name in names("j", range(4), launcher=False) if await one.node_of(name) == first]
    async with how(own_controlplane):
        ends = time.monotonic() + OUTAGE
        deadline = one.notice([first], lead=OUTAGE - 2, group="first")
        one.notice(others, lead=OUTAGE + 60, group="others")
        await one.event(job, lambda events: _told(events, "LEAVE") == [gone], f"{gone} leaves", OUTAGE)
        assert time.time() < deadline
        one.runtime.kill_node(first)
        await asyncio.sleep(max(0.0, ends - time.monotonic()))
        assert [event.text("directive") for event in _flags(job.events())] == ["LEAVE"]
    over_at = time.time()
    events = await one.event(job, lambda events: bool(_told(events, "STOP")), "rank 0 stops")
    seconds = next(event.t for event in _flags(events) if event.text("directive") == "STOP") - over_at
    print(f"away for {OUTAGE:g} s: STOP in rank 0 {max(0.0, seconds):.2f} s after that")  # noqa: T201 - a figure
    assert seconds < SECONDS_TO_DECIDE
    await one.decided(job, "Suspended")
    await one.jobs.has_pods("j")
    await one.take_away([first, *others])
    await one.add_node("n4", 3)
    assert not (await one.jobs.phase("j", "Succeeded", seconds=90)).get("restartCount")
    verdict = one.verdict(job)
    # A process that leaves by itself breaks its ring, which costs the steps since the last commit.
    assert {finding.failure for finding in verdict.failures} <= {Failure.NOT_EXCLUDED, Failure.STEP_LOST}
    assert verdict.figures.steps_lost < COMMIT_EVERY
    assert (verdict.figures.suspensions, verdict.figures.resumes) == (1, 1)


async def test_a_job_whose_time_to_wait_ends_in_an_outage_times_out_after_it(
    own_controlplane: ControlPlane, one: LineWorld
) -> None:
    """At once, in the words that its operator and Arena know; a job with more time goes on waiting."""
    plan = LineJobPlan(workers=2, annotations={**OPTED_IN, _MAX_WAIT: "6"})
    short = await one.job("short", plan)
    patient = await one.job("patient", LineJobPlan(workers=2, annotations={**OPTED_IN, _MAX_WAIT: "600"}))
    for job in (short, patient):
        await one.decided(job, "Waiting")
    async with silent(own_controlplane):
        await asyncio.sleep(OUTAGE)
    await one.decided(short, "TimedOut", SECONDS_TO_DECIDE)
    await one.jobs.phase("short", "Suspended", SECONDS_TO_DECIDE)
    assert (await one.jobs.get("short"))["metadata"]["annotations"][_STATUS] == "timeout"
    assert (await one.supervised(patient))["status"]["decision"]["phase"] == "Waiting"


def _flags(events: Sequence[JobEvent]) -> list[JobEvent]:
    return [event for event in events if event.kind is JobEventKind.FLAG_SEEN]


def _told(events: Sequence[JobEvent], directive: str) -> list[str]:
    return [event.text("host") for event in _flags(events) if event.text("directive") == directive]
