"""Shortens a recording: idle time is cut, everything else stays."""

from dataclasses import replace

from simulator.cloud.trace import Moment, Node, TraceCut, TraceError


def shortened(cut: TraceCut, longest: float) -> TraceCut:
    """Cut every stretch of more than `longest` seconds without a change to `longest` seconds.

    Order and groups stay the same, and so does every shorter stretch.

    Raises:
        TraceError: `longest` is not above 0.
    """
    if longest <= 0:
        raise TraceError(f"cannot cut idle stretches to {longest:g} s")
    before, at = 0.0, 0.0
    moments: list[Moment] = []
    for moment in cut.moments:
        at += min(moment.at - before, longest)
        before = moment.at
        moments.append(replace(moment, at=at))
    return TraceCut(cut.present, tuple(moments), at + min(cut.seconds - before, longest))


def topped_up(cut: TraceCut, count: int, after: float) -> TraceCut:
    """If fewer than `count` nodes exist at the end, add the missing ones `after` seconds later.

    Their names say that they are made up. A recording may end with fewer nodes than a job needs to continue.
    """
    there = len(cut.present) + sum(len(moment.added) - len(moment.removed) for moment in cut.moments)
    if there >= count:
        return cut
    added = tuple(Node(f"made-up{number}") for number in range(1, count - there + 1))
    at = cut.seconds + after
    return TraceCut(cut.present, (*cut.moments, Moment(at, added, ())), at + after)
