"""What a job would have made of its own history with another minimum, notice, window or way to save. Pure."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from supervisor.decide.policy import Policy
from supervisor.goodput.model import GoodputCase, GoodputCosts, Score
from supervisor.goodput.policies import with_restarts
from supervisor.goodput.pools import PoolHistory
from supervisor.goodput.schedule import (
    AddNode,
    KillNode,
    Node,
    ReclaimSchedule,
    ScheduledNotice,
    Step,
    Withdraw,
    in_order,
)
from supervisor.goodput.supervised import supervised


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What would be different; None is as it is.

    Attributes:
        least: The fewest workers with which the job trains.
        most: The workers that it wants.
        lead: How many seconds before it goes a host gets its notice, if it gets one.
        window: For how many seconds the supervisor waits for the other notices of a group.
        save_every: How many seconds the job trains between two checkpoints that it saves without a notice.
        checkpoint: How many seconds a checkpoint takes.
        restart: How many seconds pass from a start of all processes to their first step.
        in_process: Whether the processes survive a change of hosts.
        pool: The pool of whose hosts it would be.
    """

    least: int | None = None
    most: int | None = None
    lead: float | None = None
    window: float | None = None
    save_every: float | None = None
    checkpoint: float | None = None
    restart: float | None = None
    in_process: bool | None = None
    pool: PoolHistory | None = None

    def case(self, case: GoodputCase, seed: int) -> GoodputCase:
        """Returns the same time with another size, other hosts, or other notices. The seed decides which hosts.

        Raises:
            PoolError: Nothing can be drawn from what is known of the pool.
        """
        most = case.most if self.most is None else self.most
        least = min(most, case.least if self.least is None else self.least)
        found = replace(case, least=least, most=most)
        if self.pool is not None:
            found = self.pool.case(found, seed)
        return found if self.lead is None else replace(found, schedule=_with_lead(found.schedule, self.lead))

    def costs(self, costs: GoodputCosts) -> GoodputCosts:
        """Returns the costs of such a job. By restarts, a change is a checkpoint and a restart."""
        found = replace(
            costs,
            checkpoint=costs.checkpoint if self.checkpoint is None else self.checkpoint,
            restart=costs.restart if self.restart is None else self.restart,
            save_every=costs.save_every if self.save_every is None else self.save_every,
            in_process=costs.in_process if self.in_process is None else self.in_process,
        )
        return found if found.in_process else with_restarts(found)

    def policy(self) -> Policy:
        """Returns the settings of such a supervisor."""
        return Policy() if self.window is None else Policy(window_seconds=self.window)


def planned(what: WhatIf, cases: Iterable[GoodputCase], costs: GoodputCosts, seed: int) -> Score:
    """Returns what the supervisor would have made of the cases, together."""
    scores = [supervised(what.case(case, seed), what.costs(costs), seed, policy=what.policy()) for case in cases]
    return Score(
        useful=sum(score.useful for score in scores),
        steps_lost=sum(score.steps_lost for score in scores),
        restarts=sum(score.restarts for score in scores),
    )


def losses(cases: Iterable[GoodputCase], needed: float) -> tuple[int, int]:
    """Returns how many groups of hosts have gone, and how many of them with less notice than is needed (seconds)."""
    gone, sudden = 0, 0
    for case in cases:
        leads = dict[float, float]()
        for kill, notice in _kills(case.schedule):
            lead = 0.0 if notice is None else kill.at - notice.at
            leads[kill.at] = min(lead, leads.get(kill.at, math.inf))
        gone += len(leads)
        sudden += sum(lead < needed for lead in leads.values())
    return gone, sudden


def checkpoint_interval(between_losses: float, checkpoint: float) -> float:
    """Returns how many seconds to train between two checkpoints, for the least loss together with what they cost.

    It is √(2 Tf Ts), with Tf between two losses and Ts for a checkpoint: J. W. Young, "A first order approximation to
    the optimum checkpoint interval", Communications of the ACM 17(9), 1974.
    """
    return math.sqrt(2 * between_losses * checkpoint)


def _kills(schedule: ReclaimSchedule) -> Iterator[tuple[KillNode, ScheduledNotice | None]]:
    """Yields each host that goes, with its notice, if it got one."""
    noticed = dict[Node, ScheduledNotice]()
    for step in schedule.steps:
        match step:
            case ScheduledNotice():
                noticed[step.node] = step
            case Withdraw() | AddNode():
                noticed.pop(step.node, None)
            case KillNode():
                yield step, noticed.pop(step.node, None)


def _with_lead(schedule: ReclaimSchedule, lead: float) -> ReclaimSchedule:
    """The same hosts, each of whose notices comes so many seconds before the host goes, or as soon as it is there."""
    goes = {notice: kill.at for kill, notice in _kills(schedule) if notice is not None}
    arrived, steps = dict.fromkeys(schedule.present, 0.0), list[Step]()
    for step in schedule.steps:
        if isinstance(step, AddNode):
            arrived[step.node] = step.at
        if isinstance(step, ScheduledNotice) and step in goes:
            at = max(arrived.get(step.node, 0.0), goes[step] - lead)
            steps.append(replace(step, at=at, lead=goes[step] - at))
        else:
            steps.append(step)
    return replace(schedule, steps=in_order(steps))
