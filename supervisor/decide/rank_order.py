"""Orders the hosts of a torchrun round so that little of a sharded state has to go from one host to another. Pure.

With FSDP2 the first of N ranks has the first of N equal ranges of the rows of each tensor, and so on; a host has one
range, that of all its ranks. When hosts join or leave, each host has another range. It keeps the rows that both share,
and how many these are depends on its place in the order.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter

from supervisor.domain.ids import Host

_MOST_PLACES = 16
"""How many places of one host are compared. It has more where the others' ranges are small beside its own; then every
second or third place is hardly worse. This bounds the time for 5,000 hosts, whatever numbers of ranks they report.
"""


@dataclass(frozen=True, slots=True)
class RankedHost:
    """A host of a round and the number of its ranks, at least one."""

    host: Host
    ranks: int


@dataclass(frozen=True, slots=True)
class _Stay:
    """A host of both rounds. It has the rows from `begin` to `end` - 1, and will have `size` rows."""

    host: Host
    begin: int
    end: int
    size: int


@dataclass(frozen=True, slots=True)
class _Choice:
    """A place of one host, together with the best places of hosts after it that keep rows, too.

    Attributes:
        place: The place.
        host: The host.
        kept: How many rows all of them keep.
        later: The next one of them; None if this is the last one.
    """

    place: int
    host: Host
    kept: int
    later: "_Choice | None"


def next_order(before: Sequence[RankedHost], after: Sequence[RankedHost]) -> tuple[Host, ...]:
    """Returns the hosts of the next round in the order of their ranks, in which the fewest rows change their host.

    If all hosts have equally many ranks, no order is better. Otherwise none is in which the hosts that stay keep their
    order among themselves, and those that join theirs. The first host remains the first one until it leaves, as it
    keeps the most rows there.

    Args:
        before: The hosts of the present round in the order of their ranks; at least one.
        after: The hosts of the next one, each once; at least one. Those that join keep this order among themselves.
    """
    present = {each.host for each in before}
    stays, joining = _stays(before, after), [each for each in after if each.host not in present]
    unit = sum(each.ranks for each in before)
    if len({each.ranks for each in (*before, *after)}) == 1:
        size = unit * after[0].ranks
        slots = _best_places(stays, range(0, size * len(after), size), apart=1)
    else:
        slots = _merged(stays, [unit * each.ranks for each in joining])
    by_slot = {slot: host for host, slot in slots.items()}
    others = iter([*(each.host for each in stays if each.host not in slots), *(each.host for each in joining)])
    return tuple(by_slot[slot] if slot in by_slot else next(others) for slot in range(len(after)))


def _stays(before: Sequence[RankedHost], after: Sequence[RankedHost]) -> Sequence[_Stay]:
    """Returns the hosts of both rounds in the order of the present one.

    There are as many rows as ranks of the one round times ranks of the other, so that all ranges are whole numbers.
    """
    following = {each.host: each.ranks for each in after}
    rows, next_rows = sum(following.values()), sum(each.ranks for each in before)
    ends = accumulate(each.ranks * rows for each in before)
    return [
        _Stay(each.host, end - each.ranks * rows, end, following[each.host] * next_rows)
        for each, end in zip(before, ends, strict=True)
        if each.host in following
    ]


def _merged(stays: Sequence[_Stay], joining: Sequence[int]) -> Mapping[Host, int]:
    """Returns the places of all hosts that stay if they keep their order, as do those that join, of these sizes."""
    # A host's rows are counted from where its range would begin if no host joined.
    firsts = [0, *accumulate(each.size for each in stays)]
    relative = [
        replace(each, begin=each.begin - first, end=each.end - first)
        for each, first in zip(stays, firsts, strict=False)
    ]
    preceding = _best_places(relative, [0, *accumulate(joining)], apart=0)
    found, joined = dict[Host, int](), 0
    for number, each in enumerate(stays):
        joined = preceding.get(each.host, joined)
        found[each.host] = number + joined
    return found


def _best_places(stays: Sequence[_Stay], begins: Sequence[int], *, apart: int) -> Mapping[Host, int]:
    """Returns the places with which the most rows are kept, of the hosts that keep any.

    The places rise from host to host. That excludes nothing better where ranges are alike: two hosts that both keep
    rows, but in the other order, keep as many or more if they change places.

    Args:
        stays: The hosts.
        begins: For each place where the range of a host begins that has it.
        apart: By how much the place of a host is higher than that of the one before, at least.
    """
    # From the last host to the first one. The first of the choices from a place on is the best one from there on, as
    # those with higher places and fewer kept rows come after it.
    best, place_of = list[_Choice](), attrgetter("place")
    for stay in reversed(stays):
        overlapping = range(bisect_right(begins, stay.begin - stay.size), bisect_left(begins, stay.end))
        choices = list[_Choice]()
        for place in overlapping[:: 1 + len(overlapping) // _MOST_PLACES]:
            at = bisect_left(best, place + apart, key=place_of)
            later = best[at] if at < len(best) else None
            kept = min(stay.end, begins[place] + stay.size) - max(stay.begin, begins[place])
            choices.append(_Choice(place, stay.host, kept + (later.kept if later else 0), later))
        for choice in reversed(choices):
            first = at = bisect_left(best, choice.place, key=place_of)
            if at < len(best) and best[at].kept > choice.kept:
                continue
            while first and best[first - 1].kept < choice.kept:
                first -= 1
            best[first:at] = [choice]
    found, choice_or_none = dict[Host, int](), best[0] if best else None
    while choice_or_none is not None:
        found[choice_or_none.host], choice_or_none = choice_or_none.place, choice_or_none.later
    return found
