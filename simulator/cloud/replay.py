"""Performs a schedule in real time."""

import asyncio
import time
from collections.abc import Callable, Sequence

from simulator.cloud.provider import Provider
from simulator.cloud.schedule import AddNode, KillNode, ReclaimSchedule, ScheduledNotice, Step, Withdraw
from simulator.events import EventLog, JobEventKind


async def replay(provider: Provider, schedule: ReclaimSchedule, truth: EventLog) -> None:
    """Perform all steps of a schedule and record that the scenario has ended. The initial nodes must exist."""
    elapsed = _stopwatch()
    await play(provider, schedule.steps, elapsed)
    await asyncio.sleep(max(0.0, schedule.seconds - elapsed()))
    truth.write(JobEventKind.SCENARIO_ENDED)


async def play(provider: Provider, steps: Sequence[Step], elapsed: Callable[[], float] | None = None) -> None:
    """Perform the steps in order, each at its `at`, counted by `elapsed` (default: from now)."""
    elapsed = elapsed or _stopwatch()
    # The deadline follows the plan, even if a busy machine delays the notice.
    started_at = time.time() - elapsed()
    for step in sorted(steps, key=lambda step: step.at):
        await asyncio.sleep(max(0.0, step.at - elapsed()))
        _perform(provider, step, started_at)


def _stopwatch() -> Callable[[], float]:
    started = time.monotonic()
    return lambda: time.monotonic() - started


def _perform(provider: Provider, step: Step, started_at: float) -> None:
    match step:
        case ScheduledNotice():
            deadline = started_at + step.at + step.lead
            provider.notice(step.node, deadline, step.group, synthetic=step.synthetic)
        case Withdraw():
            provider.withdraw(step.node)
        case KillNode():
            provider.kill(step.node)
        case AddNode():
            provider.add(step.node)
