"""Simulated worlds, and pieces of scenarios that several tests use."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from simulator.cloud.schedule import ScheduledNotice
from simulator.cloud.trace import Node
from simulator.events import JobEvent, JobEventKind
from simulator.harness import ReplayWorld, world
from simulator.services import JobProcess

OpenWorld = Callable[[int], Coroutine[Any, Any, ReplayWorld]]
"""Opens a world with so many nodes, node1 and on."""

LEAD = 7.0
"""Seconds from a notice to the end of its node: detection, a step and a checkpoint take well under two."""


@asynccontextmanager
async def opening(root: Path) -> AsyncIterator[OpenWorld]:
    """Worlds of that directory; each must end without leaving a process behind."""
    async with AsyncExitStack() as opened:

        async def open_with(nodes: int) -> ReplayWorld:
            names = [f"node{number}" for number in range(1, nodes + 1)]
            return await opened.enter_async_context(world(root, names))

        yield open_with


def node(number: int) -> Node:
    return Node(f"node{number}")


def group(name: str, *numbers: int) -> list[ScheduledNotice]:
    return [ScheduledNotice(0, node(number), LEAD, name) for number in numbers]


def told_to_stop(events: Iterable[JobEvent], run: int) -> set[int]:
    """The ranks whose script has seen `check_alive()` become False because of a STOP."""
    flags = [event for event in events if event.kind is JobEventKind.FLAG_SEEN and event.integer("run") == run]
    return {event.integer("rank") for event in flags if event.text("directive") == "STOP"}


async def goes_on_at_the_step_after(world: ReplayWorld, ended: JobProcess) -> JobProcess:
    """Starts a kubeai-run with the same job name, and checks that it continues at the next step; returns it."""
    before = ended.events()
    (saved,) = [event.integer("step") for event in before if event.kind is JobEventKind.CHECKPOINT_SAVED]
    assert max(_steps(before)) == saved > 0
    again = world.start_job(ended.plan)
    events = await world.until_event(again, lambda events: bool(_steps(events[len(before) :])), "a step of the new run")
    assert min(_steps(events[len(before) :])) == saved + 1
    return again


def _steps(events: Sequence[JobEvent]) -> list[int]:
    return [event.integer("step") for event in events if event.kind is JobEventKind.STEP_APPLIED]
