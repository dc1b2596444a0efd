"""From a cut of a trace to what is done when, in seconds on the clock.

A trace knows when a node was gone; it does not know a notice. So every removal gets a lead time, every group a little
scatter, and, where wanted, one notice is made up that is taken back again.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from simulator.cloud.trace import Cut, Node

# An agent polls each second and a shrink waits 1.25 s for the rest of the group: below 5 s nobody could be in time.
LEAST_LEAD_SECONDS = 5.0
# The window that collects a group ends with the margin of 5 s: in a shorter lead a group cannot be one change.
GROUP_LEAD_SECONDS = 7.0
# Notices of one group are shown this close together: real ones reach the nodes' metadata at about the same time.
SCATTER_SECONDS = 0.2
# The made-up notice keeps clear of a group's window (1 s poll + 1.25 s), is there long enough to be seen and acted upon
# (1 s poll + 1.25 s window), and its withdrawal (three clear polls of 1 s, with jitter) is over before the next group.
QUIET_SECONDS = 2.5
HOLD_SECONDS = 2.75
SETTLE_SECONDS = 4.0
# What a cut starts with is first left alone for this long.
OPENING_SECONDS = 0.5


class ScheduleError(ValueError):
    """The wanted replay would not be fair or is not possible; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The node's metadata begin to say, at `at`, that it will be gone `lead` seconds later."""

    at: float
    node: Node
    lead: float
    group: str
    synthetic: bool = False


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The node's metadata say nothing any more: it stays."""

    at: float
    node: Node


@dataclass(frozen=True, slots=True)
class Kill:
    """The node is gone, with everything on it."""

    at: float
    node: Node


@dataclass(frozen=True, slots=True)
class Add:
    """A node arrives."""

    at: float
    node: Node


Step = Notice | Withdraw | Kill | Add


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is there at 0 s, and every later step in order; `at` counts seconds on the clock."""

    present: tuple[Node, ...]
    steps: tuple[Step, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How a cut is replayed.

    Attributes:
        speed: Seconds of the trace per second on the clock.
        lead: How long before its removal a node is noticed, in seconds of the trace.
        seed: Decides the scatter, and which node the made-up notice names.
        withdrawal: Whether one notice is made up and taken back.
        least: The shortest lead that is fair to a node that is noticed on its arrival, in seconds on the clock.
    """

    speed: float = 12.0
    lead: float = 120.0
    seed: int = 1
    withdrawal: bool = True
    least: float = LEAST_LEAD_SECONDS

    @property
    def lead_on_clock(self) -> float:
        """The lead time in seconds on the clock."""
        return self.lead / self.speed

    @property
    def least_for_group(self) -> float:
        """The shortest lead that is fair to the members of a group, in seconds on the clock."""
        return max(self.least, GROUP_LEAD_SECONDS)


def plan(cut: Cut, pace: Pace) -> Schedule:
    """Lay the steps of a replay out on the clock.

    A removal so early that its notice would precede the start does not lose any of its lead: the whole cut is moved
    back, so that what it starts with stands still until the first notice is due. A node that is removed sooner after
    its own arrival than the lead time is noticed on arrival.

    Raises:
        ScheduleError: A notice would come less than the least lead before its deadline, or there is no quiet time for
            the withdrawal.
    """
    _refuse_short_lead(pace)
    chance = random.Random(pace.seed)  # noqa: S311  # A replay is to be repeatable, not secret.
    shift = _shift(cut, pace)
    clock = [(shift + moment.at / pace.speed, moment) for moment in cut.moments]
    arrivals: dict[Node, float] = dict.fromkeys(cut.present, 0.0)
    steps: list[Step] = []
    groups = count(1)
    for at, moment in clock:
        group = f"group-{next(groups)}" if moment.removed else ""
        for node in moment.removed:
            shown = max(arrivals[node], at - pace.lead_on_clock + _scatter(pace, chance))
            steps += [_notice(node, shown, at, group, pace.least), Kill(at, node)]
        for node in moment.added:
            arrivals[node] = at
            steps.append(Add(at, node))
    seconds = shift + cut.seconds / pace.speed
    if pace.withdrawal:
        steps += _made_up(cut, steps, seconds, pace, chance)
    return Schedule(cut.present, tuple(sorted(steps, key=lambda step: step.at)), seconds)


def _refuse_short_lead(pace: Pace) -> None:
    if pace.speed <= 0 or pace.lead <= 0:
        raise ScheduleError("speed and lead are above 0")
    if pace.lead_on_clock < pace.least_for_group:
        raise ScheduleError(
            f"a lead of {pace.lead:g} s at speed {pace.speed:g} is {pace.lead_on_clock:.1f} s on the clock, below the"
            f" {pace.least_for_group:.2g} s that detecting a group, collecting it and a checkpoint need: lower the"
            " speed or raise the lead"
        )


def _shift(cut: Cut, pace: Pace) -> float:
    removals = [moment.at / pace.speed for moment in cut.moments if moment.removed]
    if not removals:
        return OPENING_SECONDS
    return max(OPENING_SECONDS, OPENING_SECONDS + pace.lead_on_clock - removals[0])


def _scatter(pace: Pace, chance: random.Random) -> float:
    # The least lead holds for the last of a scattered group as well.
    return min(SCATTER_SECONDS, pace.lead_on_clock - pace.least_for_group) * chance.random()


def _notice(node: Node, shown: float, deadline: float, group: str, least: float) -> Notice:
    lead = deadline - shown
    if lead < least:
        raise ScheduleError(
            f"{node} goes {lead:.1f} s after it came, on the clock: too soon for a notice of"
            f" {least:.2g} s; lower the speed or choose another cut"
        )
    return Notice(shown, node, lead, group)


def _made_up(cut: Cut, steps: Sequence[Step], seconds: float, pace: Pace, chance: random.Random) -> Iterator[Step]:
    """Make up a notice that is withdrawn, for a node that nothing happens to, where most nodes are free of notices."""
    hold = min(HOLD_SECONDS, pace.lead_on_clock - 1.0)
    need = QUIET_SECONDS + hold + SETTLE_SECONDS
    noticed = sorted(step.at for step in steps if isinstance(step, Notice))
    gaps = [(start, end) for start, end in pairwise([*noticed, seconds]) if end - start >= need]
    if not noticed and seconds >= need:
        gaps = [(0.0, seconds)]
    touched = {step.node for step in steps}
    nodes = [node for node in cut.present if node not in touched]
    if not gaps or not nodes:
        raise ScheduleError(
            f"no {need:g} s without a notice, or no node that stays, for the made-up withdrawal: lower the speed,"
            " choose another cut, or do without a withdrawal"
        )
    start, _ = max(gaps, key=lambda gap: _free(cut, steps, gap[0]))
    node, at = chance.choice(nodes), start + QUIET_SECONDS
    yield Notice(at, node, pace.lead_on_clock, "withdrawn", synthetic=True)
    yield Withdraw(at + hold, node)


def _free(cut: Cut, steps: Sequence[Step], at: float) -> int:
    """Nodes that are there at `at`, arrivals in and noticed ones out."""
    past = [step for step in steps if step.at <= at]
    came = sum(isinstance(step, Add) for step in past)
    noticed = sum(isinstance(step, Notice) for step in past)
    return len(cut.present) + came - noticed


def free_at_end(schedule: Schedule) -> int:
    """How many nodes are there at the end that nobody has noticed."""
    free = set(schedule.present)
    for step in schedule.steps:
        if isinstance(step, Add | Withdraw):
            free.add(step.node)
        else:
            free.discard(step.node)
    return len(free)


def training_seconds(schedule: Schedule, minimum: int) -> float:
    """How long at least `minimum` nodes are there that nobody has noticed: a job cannot train longer than that."""
    free, total, since = len(schedule.present), 0.0, 0.0
    noticed: set[Node] = set()
    for step in schedule.steps:
        total += step.at - since if free >= minimum else 0.0
        since = step.at
        match step:
            case Notice(node=node):
                noticed.add(node)
                free -= 1
            case Kill(node=node):
                free -= node not in noticed
                noticed.discard(node)
            case Withdraw(node=node):
                noticed.discard(node)
                free += 1
            case Add():
                free += 1
    return total + (schedule.seconds - since if free >= minimum else 0.0)
