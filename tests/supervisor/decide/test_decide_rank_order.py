"""In which order of its hosts a round of torchrun moves the fewest rows, compared with all orders of few hosts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeai.torch.moves import moves

from supervisor.decide.rank_order import RankedHost, next_order
from supervisor.domain.ids import Host
from tests.testkit.properties import examples
from tests.testkit.work import lines_run

_MOST_RANKS = 64
"""So many names of ranks a host has in these tests, of which it uses the first ones."""


def _hosts(names: Iterable[str], ranks: int = 1) -> list[RankedHost]:
    return [RankedHost(Host(name), ranks) for name in names]


def _many(first: int, end: int, ranks: int = 8) -> list[RankedHost]:
    return [RankedHost(Host(f"n{number:05}"), ranks) for number in range(first, end)]


def _joined(order: Sequence[Host]) -> str:
    return "".join(order)


def _moved(before: Sequence[RankedHost], order: Sequence[Host], ranks: Mapping[Host, int]) -> float:
    """Which part of the state ranks of one host send to ranks of another one, as the SDK plans it."""
    numbers = {host: number for number, host in enumerate({*order, *(each.host for each in before)})}

    def names(hosts: Sequence[tuple[Host, int]]) -> list[int]:
        return [numbers[host] * _MOST_RANKS + local for host, count in hosts for local in range(count)]

    holders = names([(each.host, each.ranks) for each in before])
    takers = names([(host, ranks[host]) for host in order])
    rows = len(holders) * len(takers)
    others = (each for each in moves(rows, holders, takers) if each.source // _MOST_RANKS != each.target // _MOST_RANKS)
    return sum(each.end - each.first for each in others) / rows


def _merged(first: Sequence[Host], second: Sequence[Host]) -> Iterator[list[Host]]:
    """Yields each order of all hosts in which either part keeps its own."""
    total = len(first) + len(second)
    for places in combinations(range(total), len(second)):
        rest, joining = iter(first), iter(second)
        yield [next(joining) if place in places else next(rest) for place in range(total)]


def _moved_by(before: Sequence[RankedHost], after: Sequence[RankedHost]) -> float:
    return _moved(before, next_order(before, after), {each.host: each.ranks for each in after})


@st.composite
def _changes(draw: st.DrawFn, *, alike: bool) -> tuple[list[RankedHost], list[RankedHost]]:
    """A round and the hosts of the next one; a host that stays may have another number of ranks there."""
    ranks, most = (st.just(2), 5) if alike else (st.integers(1, 4), 8)
    present = draw(st.integers(1, 7))
    names = st.lists(st.sampled_from("abcdefgwxyz"), min_size=1, max_size=most, unique=True)
    before, after = (
        [RankedHost(each.host, draw(ranks)) for each in _hosts(hosts)] for hosts in ("abcdefg"[:present], draw(names))
    )
    return before, after


def _ranks(after: Sequence[RankedHost]) -> dict[Host, int]:
    return {each.host: each.ranks for each in after}


@examples(200)
@given(_changes(alike=True))
def test_no_order_of_hosts_that_are_alike_moves_fewer_rows(change: tuple[list[RankedHost], list[RankedHost]]) -> None:
    before, after = change
    order, ranks = next_order(before, after), _ranks(after)
    assert sorted(order) == sorted(ranks)
    least = min(_moved(before, each, ranks) for each in permutations(ranks))
    assert _moved(before, order, ranks) == pytest.approx(least)


def _assert_least_of_merged(before: Sequence[RankedHost], after: Sequence[RankedHost]) -> None:
    """Check that no order moves fewer rows in which those that stay keep theirs, and so do those that join."""
    order, ranks, present = next_order(before, after), _ranks(after), _ranks(before)
    assert sorted(order) == sorted(ranks)
    staying, joining = [host for host in present if host in ranks], [host for host in ranks if host not in present]
    least = min(_moved(before, each, ranks) for each in _merged(staying, joining))
    assert _moved(before, order, ranks) <= least + 1e-9


@examples(300)
@given(_changes(alike=False))
def test_no_order_in_which_each_part_keeps_its_own_moves_fewer_rows(
    change: tuple[list[RankedHost], list[RankedHost]],
) -> None:
    """Whatever numbers of ranks the hosts have."""
    _assert_least_of_merged(*change)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a4 b2 c1 d2 e4 f1", "a4 c4 d4 f1 u1 v3 w1 x4 y3 z4"),
        ("a5 b6 c1 d2 e1 f5", "b6 c6 d2 e8 f4 u5 v1 w1 x1 y5"),
        ("a4 b3 c3 d1 e1 f4 g3", "a4 b3 c3 d1 e1 g3 u3 v4 w1 x2 y2"),
        ("a1 b4 c4 d1 e3 f3", "c4 d1 e3 f3 u2 v2 w3 x4"),
    ],
    ids=[
        "a lower place becomes worse than a higher one",
        "so do several",
        "one that keeps nothing is between others",
        "one that keeps nothing comes late",
    ],
)
def test_hosts_of_very_different_numbers_of_ranks_move_no_more_rows_either(before: str, after: str) -> None:
    _assert_least_of_merged(
        *([RankedHost(Host(each[0]), int(each[1:])) for each in hosts.split()] for hosts in (before, after))
    )


@examples(200)
@given(_changes(alike=True) | _changes(alike=False))
def test_the_first_host_remains_the_first_one_until_it_leaves(
    change: tuple[list[RankedHost], list[RankedHost]],
) -> None:
    """It writes logs and checkpoints, and this costs nothing."""
    before, after = change
    if before[0].host in _ranks(after):
        assert next_order(before, after)[0] == before[0].host


@examples(100)
@given(_changes(alike=True) | _changes(alike=False))
def test_those_that_stay_may_be_given_in_any_order(change: tuple[list[RankedHost], list[RankedHost]]) -> None:
    before, after = change
    present = _ranks(before)
    staying, joining = [each for each in after if each.host in present], [e for e in after if e.host not in present]
    assert next_order(before, [*joining, *reversed(staying)]) == next_order(before, after)


@pytest.mark.parametrize("ranks", [[8, 8, 8, 8], [8, 4, 8, 1]])
def test_a_round_of_the_same_hosts_has_the_same_order(ranks: list[int]) -> None:
    before = [RankedHost(each.host, count) for each, count in zip(_hosts("dbca"), ranks, strict=True)]
    assert _joined(next_order(before, sorted(before, key=lambda each: each.host))) == "dbca"


@pytest.mark.parametrize(
    ("before", "after", "order", "moved"),
    [
        ("abc", "abcz", "abzc", 1 / 3),
        ("a", "az", "az", 1 / 2),
        ("ab", "abyz", "aybz", 1 / 2),
        ("abcd", "acd", "acd", 1 / 3),
        ("abcd", "abc", "abc", 1 / 2),
        ("abcdef", "abcd", "acdb", 1 / 2),
        ("abcd", "acdz", "azcd", 1 / 4),
        ("abcd", "bcdz", "zbcd", 1 / 4),
        ("abcd", "bcyz", "ybcz", 1 / 2),
        ("abcd", "yz", "yz", 1.0),
    ],
    ids=[
        "one joins three",
        "one joins one",
        "two join two",
        "the second of four leaves",
        "the last of four leaves",
        "the last two of six leave",
        "one is replaced",
        "the first one is replaced",
        "two are replaced",
        "all are replaced",
    ],
)
def test_hosts_have_the_places_in_which_the_fewest_rows_move(before: str, after: str, order: str, moved: float) -> None:
    """Those of hosts that leave at the same time, or the middle. Also one that stays may change its place."""
    assert _joined(next_order(_hosts(before), _hosts(after))) == order
    assert _moved_by(_hosts(before), _hosts(after)) == pytest.approx(moved)


def test_a_host_with_many_ranks_gets_the_place_of_one_like_it() -> None:
    before = [*_hosts("a", 4), *_hosts("b", 8), *_hosts("c", 4), *_hosts("d", 4)]
    after = [before[0], before[2], before[3], *_hosts("z", 8)]
    assert _joined(next_order(before, after)) == "azcd"


@pytest.mark.parametrize(
    ("before", "after", "moved", "otherwise"),
    [
        (_many(0, 64), _many(0, 65), 0.25, 0.5),
        (_many(0, 64), _many(0, 63), 0.27, 0.5),
        (_many(0, 64), _many(0, 56), 0.38, 0.94),
        (_many(0, 64), [*_many(0, 30), *_many(34, 64)], 0.33, 0.75),
    ],
    ids=["one joins", "the last one leaves", "the last eight leave", "four in the middle leave"],
)
def test_in_the_order_of_names_much_more_would_move(
    before: Sequence[RankedHost], after: Sequence[RankedHost], moved: float, otherwise: float
) -> None:
    assert _moved_by(before, after) == pytest.approx(moved, abs=0.01)
    assert _moved(before, [each.host for each in after], _ranks(after)) == pytest.approx(otherwise, abs=0.01)


@pytest.mark.parametrize("sizes", [(60, 3), (3, 3)], ids=["small beside the others", "alike"])
def test_where_many_hosts_join_few_not_all_places_are_compared(sizes: tuple[int, int]) -> None:
    """What is found moves hardly more than the best order."""
    before = _many(0, 2, sizes[0])
    after = [*before, *_many(2, 42, sizes[1])]
    first, second, *joining = (each.host for each in after)
    least = min(_moved(before, each, _ranks(after)) for each in _merged([first, second], joining))
    assert _moved_by(before, after) <= least + 0.01


@pytest.mark.parametrize("joining", [0, 1, 100, 500, 900])
def test_a_thousand_hosts_are_ordered_in_an_instant(joining: int) -> None:
    """The event loop waits for it: 3 to 10 ms where it was measured, with 20 to 55 lines for each host."""
    before, after = _many(0, 1000 - joining), _many(0, 1000)
    assert lines_run(lambda: next_order(before, after)) < 100 * len(after)


def test_numbers_of_ranks_that_a_tenant_makes_up_keep_nobody_waiting() -> None:
    """Each of 2,500 hosts has places among as many small ones. If all were compared, 59 million lines ran."""
    before = _many(0, 2500, 1024)
    after = [*before, *_many(2500, 5000, 1)]
    assert lines_run(lambda: next_order(before, after)) < 300 * len(after)
