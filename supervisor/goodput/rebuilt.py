"""Turns what the record has kept about a job into the cases whose reclaims other policies can handle as well. Pure."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from supervisor.domain.ids import Host
from supervisor.domain.stays import HostStay, WantedSpan
from supervisor.goodput.model import GoodputCase
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

FAILOVER_SECONDS = 60.0
"""A time without a supervisor that counts as if nothing had happened in it: a failover takes seconds."""

ASSUMED_LEAD_SECONDS = 120.0
"""For a notice that named no time, about a host that stayed."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A time in which a host was there, over several stays of it."""

    host: Host
    stays: Sequence[HostStay]

    @property
    def begins(self) -> float:
        return self.stays[0].begins

    @property
    def ends(self) -> float:
        return _end(self.stays[-1])


def rebuilt(
    spans: Iterable[WantedSpan], stays: Iterable[HostStay], since: float, until: float = math.inf
) -> Sequence[GoodputCase]:
    """Returns a case for each time in which a job wanted the same number of workers, between two instants.

    A time in which it wanted none, or in which nobody counted for more than `FAILOVER_SECONDS`, separates two cases.
    Nothing is known of what came between them, so each begins with the hosts that were there.

    Args:
        spans: When the job wanted workers.
        stays: Which hosts were there. Each has an end.
        since: Unix seconds. What was before is left out.
        until: Likewise what came after.
    """
    there = list(presences(stays))
    return [
        GoodputCase(name=f"{part.begins:.0f}", schedule=_schedule(part, there), least=part.least, most=part.most)
        for part in _joined(spans, since, until)
        if part.ends > part.begins
    ]


def _joined(spans: Iterable[WantedSpan], since: float, until: float) -> Iterator[WantedSpan]:
    """Joins the spans that follow each other and have the same sizes."""
    part: WantedSpan | None = None
    for found in sorted(spans, key=lambda span: (span.begins, span.ends)):
        span = replace(found, ends=min(found.ends, until))
        if span.ends <= since or span.begins >= until:
            continue
        if part is not None and _follows(part, span):
            part = replace(part, ends=max(part.ends, span.ends))
            continue
        if part is not None:
            yield part
        part = replace(span, begins=max(span.begins, since))
    if part is not None:
        yield part


def _follows(part: WantedSpan, span: WantedSpan) -> bool:
    return (part.least, part.most) == (span.least, span.most) and span.begins - part.ends <= FAILOVER_SECONDS


def presences(stays: Iterable[HostStay]) -> Iterator[Presence]:
    """Joins the stays of each host between which it did not go."""
    by_host: dict[Host, list[HostStay]] = {}
    for stay in sorted(stays, key=lambda stay: (stay.begins, _end(stay))):
        by_host.setdefault(stay.host, []).append(stay)
    for host, of_host in sorted(by_host.items()):
        joined = of_host[:1]
        for before, stay in pairwise(of_host):
            if before.gone or stay.begins - _end(before) > FAILOVER_SECONDS:
                yield Presence(host, joined)
                joined = []
            joined = [*joined, stay]
        yield Presence(host, joined)


def _schedule(part: WantedSpan, known: Iterable[Presence]) -> ReclaimSchedule:
    there = [each for each in known if each.ends > part.begins and each.begins < part.ends]
    present = tuple(Node(each.host) for each in there if each.begins <= part.begins)
    steps = in_order(step for each in there for step in _steps(each, part))
    return ReclaimSchedule(present, steps, part.ends - part.begins)


def _steps(presence: Presence, part: WantedSpan) -> Iterator[Step]:
    """Yields what happens to a host within a part of the time."""
    node = Node(presence.host)
    if presence.begins > part.begins:
        yield AddNode(presence.begins - part.begins, node)
    following = [*presence.stays[1:], None]
    known: float | None = None
    for stay, after in zip(presence.stays, following, strict=True):
        if stay.noticed is not None and stay.noticed != known and part.begins < _end(stay) and stay.noticed < part.ends:
            at = max(stay.noticed, presence.begins, part.begins)
            yield ScheduledNotice(at - part.begins, node, max(0.0, _deadline(stay, at) - at), group="")
        known = stay.noticed
        # A supervisor that has just begun to lead knows the same notice.
        is_withdrawn = known is not None and after is not None and after.noticed != known
        if is_withdrawn and part.begins < _end(stay) < part.ends:
            yield Withdraw(_end(stay) - part.begins, node)
    if presence.ends < part.ends:
        yield KillNode(presence.ends - part.begins, node)


def _deadline(stay: HostStay, noticed: float) -> float:
    if stay.deadline is not None:
        return stay.deadline
    return _end(stay) if stay.gone else noticed + ASSUMED_LEAD_SECONDS


def _end(stay: HostStay) -> float:
    return stay.begins if stay.ends is None else stay.ends
