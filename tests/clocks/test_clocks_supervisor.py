"""A stand-alone supervisor that comes back on a machine whose clock was stepped meanwhile."""

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from simulator.cloud.schedule import AddNode, ScheduledNotice, Withdraw
from simulator.events import JobEventKind
from simulator.harness import ReplayWorld
from simulator.services import JobProcess, ServedJobPlan
from simulator.status import NoticeStatus, ReadStatus
from supervisor.wiring.startup import STORE_FILE
from tests.testkit.faketime import skew
from tests.testkit.worlds import OpenWorld, node

STEPS = pytest.mark.parametrize("step", [600.0, -7200.0])
LEAD = 100.0
SLACK = 3.0
"""Seconds: an agent's estimate moves within the whole second of a Date, it does not repeat a report that was on its way
for less than 1 s, and the supervisor ignores that a report came half a second late."""

PLAN = ServedJobPlan(min_workers=2, max_workers=3, steps=100_000, step_seconds=0.05)


@dataclass(frozen=True, slots=True)
class Announced:
    """A notice on node 3 whose exclusion is in force."""

    world: ReplayWorld
    job: JobProcess
    before: float
    after: float

    def is_right(self, notice: NoticeStatus) -> bool:
        now = time.monotonic()
        left = notice.seconds_left
        return left is not None and LEAD - (now - self.before) - SLACK <= left <= LEAD - (now - self.after) + SLACK

    @property
    def exclusions(self) -> list[tuple[str, ...]]:
        changes = (event for event in self.job.events() if event.kind is JobEventKind.EXCLUSIONS_CHANGED)
        return [event.texts("hosts") for event in changes]


async def _announced(world: ReplayWorld) -> Announced:
    job = world.start_job(PLAN)
    await world.until_training(job, workers=3)
    before = time.monotonic()
    await world.play([ScheduledNotice(0, node(3), LEAD, "g")])
    announced = Announced(world, job, before, time.monotonic())
    await world.until(lambda _status: announced.exclusions == [("node3",)], "the exclusion")
    return announced


def _only(status: ReadStatus) -> NoticeStatus:
    (notice,) = status.notices
    return notice


def _forget_the_boot(store: Path) -> None:
    """As if the machine had booted since the supervisor was killed, or the store had come to another one."""
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("UPDATE boot_time SET boot = 'another'")


@STEPS
@pytest.mark.parametrize("booted", [False, True])
async def test_a_notice_outlives_a_stepped_clock(
    open_world: OpenWorld,
    faketime: Path,
    step: float,
    booted: bool,  # noqa: FBT001 - pytest names it
) -> None:
    """It keeps its true lead, the host stays out, and only its own withdrawal ends it."""
    announced = await _announced(world := await open_world(3))
    await world.supervisor.kill()
    if booted:
        _forget_the_boot(world.paths.supervisor / STORE_FILE)
    await world.supervisor.start(skew(faketime, step))
    await world.until(lambda status: announced.is_right(_only(status)), "the true lead")
    await world.until(lambda status: "node3" in status.connected(), "the agent")
    assert announced.exclusions == [("node3",)]
    await world.play([Withdraw(0, node(3))])
    await world.until(lambda _status: announced.exclusions == [("node3",), ()], "the host to be back")
    assert _only(await world.status()).state == "withdrawn"


async def test_a_job_that_waits_is_not_timed_out_by_a_step(open_world: OpenWorld, faketime: Path) -> None:
    """How long it has waited is counted by the time since the machine's boot; it starts when there is capacity."""
    world = await open_world(1)
    job = world.start_job(replace(PLAN, run_arguments=("--max-wait-time", "300")))
    await world.until(lambda status: (known := status.job("demo")) is not None and known.phase == "Waiting", "the job")
    await world.supervisor.kill()
    await world.supervisor.start(skew(faketime, 600.0))
    await world.play([AddNode(0, node(2))])
    await world.until_training(job, workers=2)
