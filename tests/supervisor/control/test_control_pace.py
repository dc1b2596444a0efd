"""How often the control loop makes a pass while changes come one after the other."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.reconcile import Wakeup
from supervisor.control.loop import Control, ControlDependencies
from tests.testkit.waiting import until

CHANGES = 1000
PASS_SECONDS = 0.05


class PacedClock(Clock):
    at = 0.0

    def monotonic(self) -> float:
        return self.at


class Passes(Control):
    """A loop whose passes take their time by its clock, and note which change was the last one."""

    def __init__(self) -> None:
        self.clock, self.wakeup = PacedClock(), Wakeup()
        self.change = 0
        self.seen: list[int] = []
        facts = SimpleNamespace(caught_up_at=0.0)
        bulkhead = Bulkhead(self.clock)
        deps = SimpleNamespace(clock=self.clock, wakeup=self.wakeup, facts=facts, bulkhead=bulkhead)
        super().__init__(cast("ControlDependencies", cast("Any", deps)))

    def _pass(self) -> None:
        self.seen.append(self.change)
        self.clock.at += PASS_SECONDS


async def test_changes_that_come_one_after_the_other_have_no_pass_each() -> None:
    """Passes leave half of the time to whatever brings the changes, and the last change is seen."""
    loop = Passes()
    running = asyncio.create_task(loop.run())
    try:
        for loop.change in range(1, CHANGES + 1):
            loop.wakeup.set()
            await asyncio.sleep(0)
        assert len(loop.seen) < CHANGES / 10
        await until(lambda: loop.seen[-1] == CHANGES)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
