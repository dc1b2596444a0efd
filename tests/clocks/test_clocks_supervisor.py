"""A stand-alone supervisor that comes back on a machine whose clock was stepped meanwhile."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from simulator.cloud.schedule import Notice, Withdraw
from simulator.events import Kind
from simulator.harness import World
from simulator.services import JobPlan, JobProcess
from simulator.status import NoticeStatus, Status
from tests.clocks.clocks_faketime import skew
from tests.line.scenes import OpenWorld, node

STEPS = pytest.mark.parametrize("step", [600.0, -7200.0])
LEAD = 100.0
SLACK = 3.0
"""Seconds: an agent's estimate moves within the whole seconds of a Date, and what it says travels."""

PLAN = JobPlan(min_workers=2, max_workers=3, steps=100_000, step_seconds=0.05)


@dataclass(frozen=True, slots=True)
class Announced:
    """A notice on node 3 whose exclusion is in force."""

    world: World
    job: JobProcess
    before: float
    after: float

    def is_right(self, notice: NoticeStatus) -> bool:
        """Whether its lead is what is really left."""
        now = time.monotonic()
        left = notice.seconds_left
        return left is not None and LEAD - (now - self.before) - SLACK <= left <= LEAD - (now - self.after) + SLACK

    async def supervisor_is_back(self, variables: Mapping[str, str]) -> None:
        """It was killed, and starts again with these variables."""
        await self.world.supervisor.kill()
        await self.world.supervisor.start(variables)

    @property
    def exclusions(self) -> list[tuple[str, ...]]:
        """The hosts left out, after each change."""
        changes = (event for event in self.job.events() if event.kind is Kind.EXCLUSIONS_CHANGED)
        return [event.texts("hosts") for event in changes]


async def _announced(world: World) -> Announced:
    job = world.start_job(PLAN)
    await world.until_training(job, workers=3)
    before = time.monotonic()
    await world.play([Notice(0, node(3), LEAD, "g")])
    announced = Announced(world, job, before, time.monotonic())
    await world.until(lambda _status: announced.exclusions == [("node3",)], "the exclusion")
    return announced


def _only(status: Status) -> NoticeStatus:
    (notice,) = status.notices
    return notice


@STEPS
async def test_a_notice_outlives_a_stepped_clock(open_world: OpenWorld, faketime: Path, step: float) -> None:
    """It keeps its true lead, the host stays out, and only its own withdrawal ends it."""
    announced = await _announced(world := await open_world(3))
    await announced.supervisor_is_back(skew(faketime, step))
    await world.until(lambda status: announced.is_right(_only(status)), "the true lead", seconds=30)
    await world.until(lambda status: "node3" in status.connected(), "the agent")
    assert announced.exclusions == [("node3",)]
    await world.play([Withdraw(0, node(3))])
    await world.until(lambda _status: announced.exclusions == [("node3",), ()], "the host to be back")
    assert _only(await world.status()).state == "withdrawn"
