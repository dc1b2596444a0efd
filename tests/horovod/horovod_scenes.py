"""Removes one host of a job under the real driver, and checks the consequences."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from simulator.cloud.nodes import worker_pids
from simulator.cloud.process import TooLate, carries
from simulator.cloud.schedule import KillNode, ScheduledNotice
from simulator.cloud.trace import Node
from simulator.events import JobEvent, JobEventKind
from simulator.harness import ReplayWorld
from simulator.services import JobProcess

_LEAD = 12.0
"""Seconds from a notice to the end of its host: the driver looks at its hosts each second, and on a busy machine the
new ring took more than the seven that suffice elsewhere."""

# Between the last look for a doomed worker and the end of its host.
_SPARE = 0.5


def live(world: ReplayWorld, node: Node) -> list[int]:
    return [pid for pid in worker_pids(world.paths, node) if carries(pid, world.paths.root)]


async def until_left(world: ReplayWorld, job: JobProcess, *nodes: Node, seconds: float = 15.0) -> None:
    """Wait until no worker lives on any of these nodes.

    Raises:
        TooLate: One does after that time.
    """
    await world.until_event(job, lambda _: not any(live(world, node) for node in nodes), f"{nodes} to be left", seconds)


def rings(events: Sequence[JobEvent], run: int = 1) -> list[tuple[str, ...]]:
    """The rings of a run so far, each as its hosts in rank order."""
    formed = [event for event in events if event.kind is JobEventKind.RING_FORMED and event.integer("run") == run]
    return [ring.texts("hosts") for ring in formed]


def blacklisted(events: Sequence[JobEvent]) -> set[str]:
    return {event.text("host") for event in events if event.kind is JobEventKind.HOST_BLACKLISTED}


def instant(events: Sequence[JobEvent], kind: JobEventKind) -> float:
    return next(event.t for event in reversed(events) if event.kind is kind)


@dataclass(frozen=True, slots=True)
class Removal:
    """The outcome of an announced removal.

    Attributes:
        left_in_time: The doomed worker had ended before its host did.
        same_processes: The survivors' processes are those from before.
        blacklisted: Hosts that the driver blacklisted.
    """

    left_in_time: bool
    same_processes: bool
    blacklisted: set[str]


async def remove(world: ReplayWorld, job: JobProcess, doomed: Node) -> Removal:
    """Announce the end of a host, and take it away at its deadline."""
    survivors = [Node(host) for host in rings(job.events())[-1] if host != doomed]
    before = [live(world, host) for host in survivors]
    await world.play([ScheduledNotice(0, doomed, _LEAD, "g")])
    deadline = instant(world.events(job), JobEventKind.NOTICE_SHOWN) + _LEAD
    left_in_time = await _has_left(world, job, doomed, deadline - _SPARE - time.time())
    await world.play([KillNode(deadline - time.time(), doomed)])
    await world.until_training(job, workers=len(survivors))
    return Removal(left_in_time, [live(world, host) for host in survivors] == before, blacklisted(job.events()))


async def _has_left(world: ReplayWorld, job: JobProcess, node: Node, seconds: float) -> bool:
    try:
        await until_left(world, job, node, seconds=seconds)
    except TooLate:
        return False
    return True


def longest_pause(events: Sequence[JobEvent], hosts: Collection[Node]) -> float:
    """The longest time that one of these hosts took from its last step in another ring to its first in the present one.

    In seconds; it includes that step.
    """
    steps = [event for event in events if event.kind is JobEventKind.STEP_APPLIED and event.text("host") in hosts]
    present = max(event.integer("epoch") for event in steps)
    pauses = []
    for host in hosts:
        own = [event for event in steps if event.text("host") == host]
        before = max(event.t for event in own if event.integer("epoch") < present)
        pauses.append(min(event.t for event in own if event.integer("epoch") == present) - before)
    return round(max(pauses), 2)
