"""How long hosts of a capacity pool last, as the record has seen it, and a job on hosts that are drawn from that. Pure.

Most hosts of a record have not gone: what is known of these is that they lasted at least so long. Kaplan and Meier's
estimate (1958) takes that into account: without it, the few hosts that went early would speak for all.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from random import Random

from supervisor.domain.capacity import PriceClass
from supervisor.domain.ids import JobName
from supervisor.domain.stays import HostStay
from supervisor.goodput.model import GoodputCase
from supervisor.goodput.rebuilt import Presence, presences
from supervisor.goodput.schedule import AddNode, KillNode, Node, ReclaimSchedule, ScheduledNotice, Step, in_order

LEAST_WENT = 10
"""Goings of hosts from which it is known to about a third how often hosts go: 1 / √10."""

_LEAST_SECONDS = 1.0
"""Nothing is shorter, so that hosts which last no time do not follow each other for ever."""

MOST_STEPS = 100_000
"""As much happens to the hosts of a job whose simulation takes a minute."""


class PoolError(Exception):
    """Nothing can be drawn from what is known of a pool. The message is a sentence."""


@dataclass(frozen=True, slots=True)
class ObservedTime:
    """How many seconds something lasted. If it `ended` nowhere in the record, it lasted longer.

    Attributes:
        seconds: At least so long.
        ended: Whether that was all.
        lead: Of a host that went, how many seconds before its end its notice came; None without one.
    """

    seconds: float
    ended: bool
    lead: float | None = None


class ObservedTimes:
    """Times from which others are drawn, by the estimate of Kaplan and Meier."""

    def __init__(self, times: Iterable[ObservedTime]) -> None:
        self._times = sorted(times, key=lambda time: (time.seconds, not time.ended))
        self.ended = [time for time in self._times if time.ended]

    def __len__(self) -> int:
        return len(self._times)

    def draw(self, chance: Random) -> ObservedTime:
        """Draws a time; an endless one if none has ended.

        One that outlasts all that have ended goes on at the mean rate of all: with few left, the estimate says little.
        """
        if not self.ended:
            return ObservedTime(math.inf, ended=False)
        [place] = chance.choices(range(len(self.ended) + 1), cum_weights=self._weights)
        if place < len(self.ended):
            return self.ended[place]
        more = chance.expovariate(self._rate)
        return replace(chance.choice(self.ended), seconds=self.ended[-1].seconds + more)

    @cached_property
    def _rate(self) -> float:
        """How many end in a second."""
        return len(self.ended) / max(_LEAST_SECONDS, sum(time.seconds for time in self._times))

    @cached_property
    def _weights(self) -> Sequence[float]:
        """The chance of each time that has ended, and at last that of lasting longer than all, added up."""
        left, at_risk, weights = 1.0, len(self._times), list[float]()
        for _, alike in groupby(self._times, key=lambda time: time.seconds):
            together = list(alike)
            ended = sum(time.ended for time in together)
            weights += [left / at_risk] * ended
            left -= left * ended / at_risk
            at_risk -= len(together)
        return list(accumulate([*weights, max(0.0, left)]))


@dataclass(frozen=True, slots=True)
class PoolHistory:
    """Holds what a record has seen of a pool.

    Attributes:
        name: `CLOUD/ZONE/TYPE`.
        lives: How long hosts were there.
        gaps: How long it took until another host came to a job one of whose hosts had gone.
        cut: Whether the earliest hosts were left out, as there were too many.
    """

    name: str
    lives: ObservedTimes
    gaps: ObservedTimes
    cut: bool = False

    def case(self, case: GoodputCase, seed: int) -> GoodputCase:
        """Returns the same time and job with hosts of this pool.

        It begins with as many hosts as were there. Each lasts as long as one that is drawn, with the same notice; then
        another one comes after a gap that is drawn. Each goes by itself.

        Raises:
            PoolError: Too few hosts have gone, or too many would.
        """
        if len(self.lives.ended) < LEAST_WENT:
            raise PoolError(
                f"In {self.name}, hosts that are not on demand went {len(self.lives.ended)} times in that time: it "
                f"takes {LEAST_WENT} times to say how long they last there. A longer --since may have more."
            )
        chance = Random(f"{seed} {self.name} {case.name}")  # noqa: S311 - repeatable, not secret
        seconds, there, steps = case.schedule.seconds, len(case.schedule.present), list[Step]()
        for place in range(max(case.most, there)):
            begins = 0.0 if place < there else self.gaps.draw(chance).seconds
            for step in self._steps(str(place), begins, seconds, chance):
                steps.append(step)
                if len(steps) > MOST_STEPS:
                    raise PoolError(
                        f"Hosts of {self.name} come and go too often to be simulated: choose a later --since."
                    )
        present = tuple(Node(f"{place}-0") for place in range(there))
        return replace(case, schedule=ReclaimSchedule(present, in_order(steps), seconds))

    def _steps(self, place: str, begins: float, seconds: float, chance: Random) -> Iterator[Step]:
        """Yields what happens to the hosts that follow each other in one place of a job."""
        number = 0
        while begins < seconds:
            node = Node(f"{place}-{number}")
            if begins > 0:
                yield AddNode(begins, node)
            life = self.lives.draw(chance)
            goes = begins + max(_LEAST_SECONDS, life.seconds)
            if life.lead is not None and (noticed := max(begins, goes - life.lead)) < min(goes, seconds):
                yield ScheduledNotice(noticed, node, goes - noticed, group="")
            if goes < seconds:
                yield KillNode(goes, node)
            begins, number = goes + self.gaps.draw(chance).seconds, number + 1


def pool_history(name: str, stays: Mapping[JobName, Collection[HostStay]], since: float, until: float) -> PoolHistory:
    """Returns what was seen of a pool between two instants (Unix seconds).

    Hosts on demand are left out, as the cloud does not reclaim them. A host that was there before counts from `since`.

    Args:
        name: The name of the pool.
        stays: Of the hosts of the pool, by job. Each has an end.
        since: The first instant.
        until: The last one.
    """
    lives, gaps = list[ObservedTime](), list[ObservedTime]()
    for of_job in stays.values():
        reclaimed = [stay for stay in of_job if stay.pool is None or stay.pool.price_class is not PriceClass.ON_DEMAND]
        there = [each for each in presences(reclaimed) if each.ends > since and each.begins < until]
        lives += (_life(each, since, until) for each in there)
        gaps += _gaps(there, since, until)
    return PoolHistory(name, ObservedTimes(lives), ObservedTimes(gaps))


def _life(presence: Presence, since: float, until: float) -> ObservedTime:
    seconds, last = min(presence.ends, until) - max(presence.begins, since), presence.stays[-1]
    if not last.gone or presence.ends > until:
        return ObservedTime(seconds, ended=False)
    return ObservedTime(seconds, ended=True, lead=None if last.noticed is None else presence.ends - last.noticed)


def _gaps(there: Sequence[Presence], since: float, until: float) -> Iterator[ObservedTime]:
    """Yields the time after each going of a job's hosts until the next host came that is not counted already."""
    came = deque(sorted(each.begins for each in there if each.begins > since))
    end = min(until, max((each.ends for each in there), default=until))
    for went in sorted(each.ends for each in there if each.stays[-1].gone and each.ends <= until):
        while came and came[0] < went:
            came.popleft()
        yield ObservedTime(came.popleft() - went, ended=True) if came else ObservedTime(end - went, ended=False)
