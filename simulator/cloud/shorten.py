"""Making a whole recording short enough to be replayed: idle time goes, everything else stays."""

from dataclasses import replace

from simulator.cloud.trace import Cut, Moment, Node, TraceError


def shortened(cut: Cut, longest: float) -> Cut:
    """Cut every stretch of more than `longest` seconds in which nothing happens to `longest` seconds.

    Order and groups stay as they are, and so does every shorter stretch; nodes live shorter by the idle time alone.

    Raises:
        TraceError: `longest` is not above 0.
    """
    if longest <= 0:
        raise TraceError(f"idle stretches cannot be cut to {longest:g} s")
    before, at = 0.0, 0.0
    moments: list[Moment] = []
    for moment in cut.moments:
        at += min(moment.at - before, longest)
        before = moment.at
        moments.append(replace(moment, at=at))
    return Cut(cut.present, tuple(moments), at + min(cut.seconds - before, longest))


def topped_up(cut: Cut, count: int, after: float) -> Cut:
    """Where fewer than `count` nodes are there at the end, let the missing ones arrive `after` seconds later.

    These arrivals are made up, and named so: a recording may end with fewer nodes than a job can go on with.
    """
    there = len(cut.present) + sum(len(moment.added) - len(moment.removed) for moment in cut.moments)
    if there >= count:
        return cut
    added = tuple(Node(f"made-up{number}") for number in range(1, count - there + 1))
    at = cut.seconds + after
    return Cut(cut.present, (*cut.moments, Moment(at, added, ())), at + after)
