"""The best that any policy could do: it knows every arrival and every reclaim in advance.

The job's time is divided into spans with the same hosts, each from one change of the capacity to another. Within a span
the best hosts are all that are there for the whole of it, so the best division follows by dynamic programming. No
policy with the same costs does better: each of its changes could as well be moved to a change of the capacity, because
between two of those what it gains or loses by moving is linear in time.

A second oracle learns of a reclaim by its notice, as every policy does. So hosts without a notice are in use after each
of its changes, and the next change comes before the first of them goes. It still knows when notices and hosts will
come, and what it learns it knows at once.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from simulator.cloud.schedule import AddNode, KillNode, ReclaimSchedule, ScheduledNotice
from simulator.cloud.trace import Node
from supervisor.goodput.model import GoodputCase, GoodputCosts


@dataclass(slots=True)
class _Best:
    """The most worker-seconds up to a moment, if the job trains there, is suspended, or has never started."""

    training: float = -math.inf
    suspended: float = -math.inf
    unstarted: float = 0.0

    @property
    def most(self) -> float:
        return max(self.training, self.suspended, self.unstarted)


@dataclass(slots=True)
class _Moments:
    """The instants at which the capacity changes; `born` and `gone` are the positions of them for each node."""

    at: list[float]
    born: Mapping[Node, int]
    gone: Mapping[Node, int]
    told: Mapping[Node, int]
    _leaving: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for node, position in self.gone.items():
            self._leaving[position].append(self.born[node])

    def spans(self, first: int) -> Iterator[tuple[int, int]]:
        """For each later moment, how many of the nodes that are there at the first one stay until then."""
        last = len(self.at)
        nodes = sum(born <= first < self.gone.get(node, last) for node, born in self.born.items())
        for until in range(first + 1, last):
            yield until, nodes
            nodes -= sum(born <= first for born in self._leaving[until])

    def first_unannounced(self, first: int) -> int:
        """The moment at which the first node goes that is there at `first` and has no notice then."""
        gone = (
            gone
            for node, gone in self.gone.items()
            if self.born[node] <= first < self.told.get(node, len(self.at)) and first < gone
        )
        return min(gone, default=len(self.at))


def best_worker_steps(case: GoodputCase, costs: GoodputCosts) -> float:
    """The most worker-steps that can be useful."""
    moments = _moments(case.schedule)
    best = [_Best() for _ in moments.at]
    for first in range(len(moments.at)):
        if first:
            best[first].suspended = max(best[first].suspended, best[first - 1].suspended)
        for until, nodes in moments.spans(first):
            workers = case.possible(nodes)
            if not workers:
                break
            _extend(best[first], best[until], workers, moments.at[until] - moments.at[first], costs)
    return best[-1].most / costs.step


def best_by_notices(case: GoodputCase, costs: GoodputCosts) -> float:
    """The most worker-steps that can be useful for who learns of each reclaim by its notice."""
    moments = _moments(case.schedule, by_notices=True)
    best = [_Best() for _ in moments.at]
    for first in range(len(moments.at)):
        if first:
            best[first].suspended = max(best[first].suspended, best[first - 1].suspended)
        last = moments.first_unannounced(first)
        for until, nodes in moments.spans(first):
            workers, seconds = case.possible(nodes), moments.at[until] - moments.at[first]
            if not workers or until > last:
                break
            _extend_whole(best[first], best[until], workers, seconds, costs)
    return best[-1].most / costs.step


def _extend_whole(before: _Best, after: _Best, workers: int, seconds: float, costs: GoodputCosts) -> None:
    """As `_extend`, for spans that notices divide further: what is begun in one does not count as done at its end.

    A change that is given up is followed by another whole one, and so is a start that costs no more than that.
    """
    starts = ((before.unstarted, 0.0), (before.training, costs.change), (before.suspended, costs.restart))
    for gained, cost in starts:
        if cost <= costs.change or seconds >= cost:
            after.training = max(after.training, gained + workers * max(0.0, seconds - cost))
        if seconds >= costs.checkpoint:
            after.suspended = max(after.suspended, gained + workers * max(0.0, seconds - cost - costs.checkpoint))


def _extend(before: _Best, after: _Best, workers: int, seconds: float, costs: GoodputCosts) -> None:
    """Takes a span with so many workers into account."""
    starts = (
        (before.unstarted, 0.0),
        (before.training, costs.change),
        (before.suspended, costs.restart),
    )
    for gained, cost in starts:
        after.training = max(after.training, gained + workers * max(0.0, seconds - cost))
        after.suspended = max(after.suspended, gained + workers * max(0.0, seconds - cost - costs.checkpoint))


def _moments(schedule: ReclaimSchedule, *, by_notices: bool = False) -> _Moments:
    kinds = (AddNode, KillNode, ScheduledNotice) if by_notices else (AddNode, KillNode)
    changes = (step.at for step in schedule.steps if isinstance(step, kinds) and step.at < schedule.seconds)
    at = sorted({0.0, *changes, schedule.seconds})
    position = {instant: number for number, instant in enumerate(at)}
    born, gone, told = dict.fromkeys(schedule.present, 0), dict[Node, int](), dict[Node, int]()
    for step in schedule.steps:
        if step.at < schedule.seconds and isinstance(step, AddNode):
            born[step.node] = position[step.at]
        elif step.at < schedule.seconds and isinstance(step, KillNode):
            gone[step.node] = position[step.at]
        elif by_notices and step.at < schedule.seconds and isinstance(step, ScheduledNotice):
            told[step.node] = position[step.at]
    return _Moments(at, born, gone, told)
