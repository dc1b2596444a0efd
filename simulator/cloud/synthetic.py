"""Synthetic capacity: removals at a fixed rate, and sequences of events that no recording contains.

The seed alone determines both.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from simulator.cloud.schedule import (
    HOLD_SECONDS,
    AddNode,
    KillNode,
    ReclaimSchedule,
    ScheduledNotice,
    SchedulePace,
    Step,
    Withdraw,
)
from simulator.cloud.trace import Moment, Node, TraceCut

HOUR = 3600.0
# Recorded changes are at whole minutes, so closer changes are one change.
GRAIN_SECONDS = 60.0
# Younger nodes are spared, because at the speed of a replay they would be gone before any notice.
SPARED_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Rates:
    """How capacity comes and goes.

    Attributes:
        nodes: Initial number of nodes, up to which removed ones are replaced.
        node_hours: Mean hours until a node is removed.
        sizes: Sizes of removed groups, chosen at random.
        groups: Number of groups.
        replaced_after: Mean seconds until a removed node is replaced.
    """

    nodes: int = 16
    node_hours: float = 4.0
    sizes: tuple[int, ...] = (1, 1, 2, 4)
    groups: int = 8
    replaced_after: float = 300.0


def fixed_rate(rates: Rates, seed: int) -> TraceCut:
    """Generate removals in groups at a fixed rate (a Poisson process), with a replacement for each node."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    numbers = count(rates.nodes + 1)
    present = tuple(Node(f"node{number}") for number in range(1, rates.nodes + 1))
    arrived: dict[Node, float] = dict.fromkeys(present, 0.0)
    changes: dict[float, tuple[list[Node], list[Node]]] = {}
    interval = rates.node_hours * HOUR * sum(rates.sizes) / len(rates.sizes) / rates.nodes
    at = SPARED_SECONDS
    for _ in range(rates.groups):
        at = _grain(at + max(GRAIN_SECONDS, chance.expovariate(1 / interval)))
        old = [node for node, since in arrived.items() if at - since >= SPARED_SECONDS]
        for node in chance.sample(old, min(chance.choice(rates.sizes), len(old))):
            del arrived[node]
            changes.setdefault(at, ([], []))[1].append(node)
            back = _grain(at + GRAIN_SECONDS + chance.expovariate(1 / rates.replaced_after))
            arrived[following := Node(f"node{next(numbers)}")] = back
            changes.setdefault(back, ([], []))[0].append(following)
    moments = tuple(Moment(when, tuple(added), tuple(removed)) for when, (added, removed) in sorted(changes.items()))
    return TraceCut(present, moments, max(changes, default=at) + GRAIN_SECONDS)


def _grain(seconds: float) -> float:
    return round(seconds / GRAIN_SECONDS) * GRAIN_SECONDS


HARD_NODES = 8
HARD_MINIMUM = 5
HARD_LEAD_SECONDS = 8.0
# Every event is shifted by up to this much, so that it falls anywhere in the polls and windows.
JITTER_SECONDS = 0.5


class _ScheduleBuilder:
    """Builds the steps of the hard schedule and tracks the remaining nodes."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._numbers = count(1)
        self.steps: list[Step] = []
        self.left: list[Node] = self._named(HARD_NODES)
        self.present = tuple(self.left)

    def group(self, at: float, name: str, size: int, *, among: Sequence[Node] = ()) -> None:
        """Announce a group at about `at`. Its nodes are removed at the deadline."""
        at = self._about(at)
        for node in self.chance.sample(among or self.left, size):
            self.left.remove(node)
            gone = at + HARD_LEAD_SECONDS
            self.steps += [ScheduledNotice(at, node, HARD_LEAD_SECONDS, name), KillNode(gone, node)]

    def arrivals(self, at: float, size: int) -> list[Node]:
        """Add nodes together at about `at`."""
        at, nodes = self._about(at), self._named(size)
        self.left += nodes
        self.steps += [AddNode(at, node) for node in nodes]
        return nodes

    def flapping(self, at: float, times: int) -> None:
        """Announce a node and withdraw it repeatedly, faster than the three clear polls of a withdrawal."""
        at, node = self._about(at), self.chance.choice(self.left)
        for turn in range(times):
            shown = at + turn * 2.4
            self.steps += [
                ScheduledNotice(shown, node, HARD_LEAD_SECONDS, f"flapping-{turn + 1}", synthetic=True),
                Withdraw(shown + 1.2, node),
            ]

    def _about(self, at: float) -> float:
        return at + self.chance.uniform(0.0, JITTER_SECONDS)

    def _named(self, size: int) -> list[Node]:
        return [Node(f"node{next(self._numbers)}") for _ in range(size)]


def hard(seed: int) -> ReclaimSchedule:
    """Return a schedule with events at the worst moments, for a job that needs five of eight nodes.

    Consecutive groups, a flapping notice, groups and an arrival while the job is stopping, suspended and resuming, and
    finally every node at once.
    """
    builder = _ScheduleBuilder(seed)
    for chapter in (_back_to_back, _stopped_and_resumed, _all_at_once):
        chapter(builder)
    steps = tuple(sorted(builder.steps, key=lambda step: step.at))
    return ReclaimSchedule(builder.present, steps, steps[-1].at + 12.0)


def _back_to_back(builder: _ScheduleBuilder) -> None:
    builder.group(1.0, "first", 1)
    builder.group(3.2, "second", 1)
    builder.flapping(6.5, times=2)
    builder.arrivals(12.0, 2)


def _stopped_and_resumed(builder: _ScheduleBuilder) -> None:
    builder.group(19.0, "stopping", 4)
    builder.group(20.0, "while-stopping", 1)
    builder.arrivals(20.2, 1)
    builder.group(24.0, "while-suspended", 1)
    fresh = builder.arrivals(28.0, 3)
    # The agents of new nodes start in about a second, and a start below full size waits two more.
    builder.group(31.2, "while-resuming", 1, among=fresh)


def _all_at_once(builder: _ScheduleBuilder) -> None:
    builder.group(43.0, "everything", len(builder.left))
    builder.arrivals(53.0, HARD_MINIMUM + 1)


BRIEF_MINIMUM = 4
BRIEF_PACE = SchedulePace(speed=1.0, lead=7.5)
BRIEF_STEP_SECONDS = 0.2


def brief() -> TraceCut:
    """Return the shortest cut that shows everything, for a job that needs four of seven nodes.

    A group that shrinks the job, time for a withdrawn notice and the return of its host, a group that stops the job,
    and capacity for its resume, which comes when that group is gone.
    """
    node = [Node(f"node{number}") for number in range(1, 10)]
    moments = (
        Moment(8.0, (), tuple(node[1:3])),
        Moment(30.5, (), tuple(node[5:7])),
        Moment(31.0, (node[7],), ()),
        Moment(31.5, (node[8],), ()),
    )
    # Long enough that a job which trains on instead of stopping has not finished when that group goes.
    return TraceCut(tuple(node[:7]), moments, 40.0)


SHORT_NODES = 8
SHORT_MINIMUM = 5
SHORT_LEAD_SECONDS = 7.5


def short() -> ReclaimSchedule:
    """Return a schedule with one of each event, for a job that needs five of eight nodes.

    A group that shrinks the job, a withdrawn notice, an arrival, a group that stops the job, and capacity for its
    resume beside a node that has a notice from its first second. Between the withdrawal and the stop, a host has time
    to return. The capacity comes when the group of the stop is gone: before, a job that is not stopped could replace
    the group in time and come to no harm.
    """
    node = [Node(f"node{number}") for number in range(1, 13)]
    lead, shrink, back, stopping = SHORT_LEAD_SECONDS, 1.0, 4.0, 24.5
    beside = lead + 5.0
    steps: tuple[Step, ...] = (
        *(ScheduledNotice(shrink, gone, lead, "shrink") for gone in node[1:3]),
        ScheduledNotice(back, node[3], lead, "withdrawn", synthetic=True),
        Withdraw(back + HOLD_SECONDS, node[3]),
        *(KillNode(shrink + lead, gone) for gone in node[1:3]),
        AddNode(9.0, node[8]),
        *(ScheduledNotice(stopping, gone, lead, "stop") for gone in node[4:7]),
        AddNode(stopping + 1.0, node[9]),
        ScheduledNotice(stopping + 1.5, node[9], beside, "beside-the-resume"),
        *(KillNode(stopping + lead, gone) for gone in node[4:7]),
        *(AddNode(stopping + lead + 0.5, new) for new in node[10:12]),
        KillNode(stopping + 1.5 + beside, node[9]),
    )
    return ReclaimSchedule(tuple(node[:SHORT_NODES]), steps, stopping + 1.5 + beside + 1.0)


AGREED_NODES = 6
AGREED_MINIMUM = 4
AGREED_MULTIPLE = 2


def agreed() -> ReclaimSchedule:
    """Return a schedule for a job whose ranks stop at one step, and which trains with four or six of its hosts.

    One of six hosts is reclaimed, so that the job continues with four of five. One arrives. A group of three stops the
    job, and it resumes with four of five.
    """
    node = [Node(f"node{number}") for number in range(1, 10)]
    lead, shrink, stopping = SHORT_LEAD_SECONDS, 1.0, 24.5
    steps: tuple[Step, ...] = (
        ScheduledNotice(shrink, node[1], lead, "shrink"),
        KillNode(shrink + lead, node[1]),
        AddNode(9.5, node[6]),
        *(ScheduledNotice(stopping, gone, lead, "stop") for gone in node[3:6]),
        *(KillNode(stopping + lead, gone) for gone in node[3:6]),
        *(AddNode(stopping + lead + 0.5, new) for new in node[7:9]),
    )
    return ReclaimSchedule(tuple(node[:AGREED_NODES]), steps, stopping + lead + 8.0)


def leads(schedule: ReclaimSchedule) -> Iterator[float]:
    """Return the leads of a schedule's real notices, in seconds on the clock."""
    return (step.lead for step in schedule.steps if isinstance(step, ScheduledNotice) and not step.synthetic)
