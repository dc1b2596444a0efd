"""Turns a cut of a trace into timed steps, in seconds on the clock.

A trace contains removals but no notices. So every removal gets a lead time, every group a small scatter, and on request
one synthetic notice is added that is withdrawn.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from simulator.cloud.trace import Node, TraceCut
from supervisor.goodput.schedule import AddNode, KillNode, ReclaimSchedule, ScheduledNotice, Step, Withdraw

# With the steps of a schedule, which the simulations of `supervisor/goodput` share.
__all__ = [
    "AddNode",
    "KillNode",
    "ReclaimSchedule",
    "ScheduleError",
    "SchedulePace",
    "ScheduledNotice",
    "Step",
    "Withdraw",
    "free_at_end",
    "plan",
    "training_seconds",
]

# An agent polls every second and a shrink waits 1.25 s for the rest of the group, so less than 5 s is impossible.
LEAST_LEAD_SECONDS = 5.0
# The window that collects a group ends at the margin of 5 s, so with a shorter lead a group cannot be one change.
GROUP_LEAD_SECONDS = 7.0
# Notices of one group appear this close together, as in reality.
SCATTER_SECONDS = 0.2
# The synthetic notice stays clear of a group's window (1 s poll + 1.25 s), lasts long enough to be seen and acted on
# (1 s poll + 1.25 s window), and its withdrawal (three clear polls of 1 s, with jitter) ends before the next group.
QUIET_SECONDS = 2.5
HOLD_SECONDS = 2.75
SETTLE_SECONDS = 4.0
# The initial nodes are left alone for this long.
OPENING_SECONDS = 0.5


class ScheduleError(ValueError):
    """The replay would be unfair or is impossible. The message says what to change."""


@dataclass(frozen=True, slots=True)
class SchedulePace:
    """How a cut is replayed.

    Attributes:
        speed: Trace seconds per second on the clock.
        lead: How long before its removal a node is noticed, in trace seconds.
        seed: Seed of the scatter and of the node with the synthetic notice.
        withdrawal: Whether to add a synthetic notice that is withdrawn.
        least: Shortest fair lead for a node that is noticed on its arrival, in seconds on the clock.
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
        """The shortest fair lead for a group, in seconds on the clock."""
        return max(self.least, GROUP_LEAD_SECONDS)


def plan(cut: TraceCut, pace: SchedulePace) -> ReclaimSchedule:
    """Lay out the steps of a replay on the clock.

    If the first notice would precede the start, the whole cut is delayed, so that every removal keeps its lead. A node
    that
    is removed sooner after its arrival than the lead time is noticed on arrival.

    Raises:
        ScheduleError: A lead would be too short, or there is no quiet time for the withdrawal.
    """
    _refuse_short_lead(pace)
    chance = random.Random(pace.seed)  # noqa: S311 - repeatable, not secret
    shift = _shift(cut, pace)
    clock = [(shift + moment.at / pace.speed, moment) for moment in cut.moments]
    arrivals: dict[Node, float] = dict.fromkeys(cut.present, 0.0)
    steps: list[Step] = []
    groups = count(1)
    for at, moment in clock:
        group = f"group-{next(groups)}" if moment.removed else ""
        for node in moment.removed:
            shown = max(arrivals[node], at - pace.lead_on_clock + _scatter(pace, chance))
            steps += [_notice(node, shown, at, group, pace.least), KillNode(at, node)]
        for node in moment.added:
            arrivals[node] = at
            steps.append(AddNode(at, node))
    seconds = shift + cut.seconds / pace.speed
    if pace.withdrawal:
        steps += _synthetic_withdrawal(cut, steps, seconds, pace, chance)
    return ReclaimSchedule(cut.present, tuple(sorted(steps, key=lambda step: step.at)), seconds)


def _refuse_short_lead(pace: SchedulePace) -> None:
    if pace.speed <= 0 or pace.lead <= 0:
        raise ScheduleError("speed and lead must be above 0")
    if pace.lead_on_clock < pace.least_for_group:
        raise ScheduleError(
            f"a lead of {pace.lead:g} s at speed {pace.speed:g} is {pace.lead_on_clock:.1f} s on the clock, below the"
            f" {pace.least_for_group:.2g} s that detecting a group, collecting it and a checkpoint need: lower the"
            " speed or raise the lead"
        )


def _shift(cut: TraceCut, pace: SchedulePace) -> float:
    removals = [moment.at / pace.speed for moment in cut.moments if moment.removed]
    if not removals:
        return OPENING_SECONDS
    return max(OPENING_SECONDS, OPENING_SECONDS + pace.lead_on_clock - removals[0])


def _scatter(pace: SchedulePace, chance: random.Random) -> float:
    # The shortest lead applies to the last of a scattered group as well.
    return min(SCATTER_SECONDS, pace.lead_on_clock - pace.least_for_group) * chance.random()


def _notice(node: Node, shown: float, deadline: float, group: str, least: float) -> ScheduledNotice:
    lead = deadline - shown
    if lead < least:
        raise ScheduleError(
            f"{node} is removed {lead:.1f} s after its arrival, on the clock: too soon for a notice of"
            f" {least:.2g} s; lower the speed or choose another cut"
        )
    return ScheduledNotice(shown, node, lead, group)


def _synthetic_withdrawal(
    cut: TraceCut, steps: Sequence[Step], seconds: float, pace: SchedulePace, chance: random.Random
) -> Iterator[Step]:
    """Add a notice that is withdrawn, for a node that nothing else happens to, when most nodes are free."""
    hold = min(HOLD_SECONDS, pace.lead_on_clock - 1.0)
    need = QUIET_SECONDS + hold + SETTLE_SECONDS
    noticed = sorted(step.at for step in steps if isinstance(step, ScheduledNotice))
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
    yield ScheduledNotice(at, node, pace.lead_on_clock, "withdrawn", synthetic=True)
    yield Withdraw(at + hold, node)


def _free(cut: TraceCut, steps: Sequence[Step], at: float) -> int:
    """Count the nodes without a notice at `at`."""
    past = [step for step in steps if step.at <= at]
    came = sum(isinstance(step, AddNode) for step in past)
    noticed = sum(isinstance(step, ScheduledNotice) for step in past)
    return len(cut.present) + came - noticed


def free_at_end(schedule: ReclaimSchedule) -> int:
    """Count the nodes without a notice at the end."""
    free = set(schedule.present)
    for step in schedule.steps:
        if isinstance(step, AddNode | Withdraw):
            free.add(step.node)
        else:
            free.discard(step.node)
    return len(free)


def training_seconds(schedule: ReclaimSchedule, minimum: int) -> float:
    """Return how long at least `minimum` nodes have no notice. A job cannot train longer than that."""
    free, total, since = len(schedule.present), 0.0, 0.0
    noticed: set[Node] = set()
    for step in schedule.steps:
        total += step.at - since if free >= minimum else 0.0
        since = step.at
        match step:
            case ScheduledNotice(node=node):
                noticed.add(node)
                free -= 1
            case KillNode(node=node):
                free -= node not in noticed
                noticed.discard(node)
            case Withdraw(node=node):
                noticed.discard(node)
                free += 1
            case AddNode():
                free += 1
    return total + (schedule.seconds - since if free >= minimum else 0.0)
