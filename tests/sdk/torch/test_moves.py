"""Which rows go from which rank to which when the number of ranks changes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeai.torch.decisions import RoundHost
from kubeai.torch.moves import (
    NO_PART,
    PartClaim,
    RowMove,
    holders_of,
    is_room_for,
    moves,
    next_ranks,
    rows_of,
    stayers,
)

_PROCESSES = 20


@st.composite
def _changes(draw: st.DrawFn) -> tuple[int, Sequence[int], Sequence[int]]:
    """The number of rows, and the processes that hold and that take parts, in any order; some of them are both."""
    processes = st.lists(st.integers(0, _PROCESSES - 1), min_size=1, max_size=9, unique=True)
    return draw(st.integers(0, 60)), draw(processes), draw(processes)


def _parts(rows: int, ranks: Sequence[int]) -> dict[int, set[int]]:
    return {rank: set(range(*rows_of(rows, len(ranks), part))) for part, rank in enumerate(ranks)}


@given(st.integers(0, 60), st.integers(1, 9))
def test_parts_follow_one_another_and_are_those_of_chunk(rows: int, parts: int) -> None:
    spans = [rows_of(rows, parts, part) for part in range(parts)]
    assert [row for span in spans for row in range(*span)] == list(range(rows))
    longest = -(-rows // parts)
    assert all(end - first == min(longest, rows - first) for first, end in spans)


@given(_changes())
def test_every_row_of_each_new_part_has_exactly_one_source_that_has_it(
    change: tuple[int, Sequence[int], Sequence[int]],
) -> None:
    rows, holders, takers = change
    before, after = _parts(rows, holders), _parts(rows, takers)
    received: dict[int, list[int]] = {rank: [] for rank in takers}
    for move in moves(rows, holders, takers):
        found = range(move.first, move.end)
        assert found
        assert set(found) <= before[move.source]
        received[move.target] += found
    assert {rank: sorted(found) for rank, found in received.items()} == {k: sorted(v) for k, v in after.items()}


@given(_changes())
def test_a_row_that_its_taker_has_is_not_sent_and_no_fewer_rows_would_do(
    change: tuple[int, Sequence[int], Sequence[int]],
) -> None:
    rows, holders, takers = change
    before, after = _parts(rows, holders), _parts(rows, takers)
    sent = sum(move.end - move.first for move in moves(rows, holders, takers) if move.source != move.target)
    assert sent == sum(len(wanted - before.get(rank, set())) for rank, wanted in after.items())


@given(_changes())
def test_two_ranks_have_at_most_one_message_for_a_tensor(change: tuple[int, Sequence[int], Sequence[int]]) -> None:
    """So messages need no names."""
    found = [(move.source, move.target) for move in moves(*change)]
    assert len(found) == len(set(found))


def test_the_last_of_four_leaves_and_half_of_the_state_moves() -> None:
    sent = [move for move in moves(12, range(4), range(3)) if move.source != move.target]
    assert sent == [RowMove(1, 0, 3, 4), RowMove(2, 1, 6, 8), RowMove(3, 2, 9, 12)]


@pytest.mark.parametrize(
    ("after", "ranks"),
    [
        ("acd", [0, 1, None, None, 2, 3]),
        ("cab", [2, 3, 4, 5, 0, 1]),
        ("xacy", [2, 3, None, None, 4, 5]),
        ("", [None] * 6),
    ],
)
def test_ranks_follow_their_hosts(after: str, ranks: list[int | None]) -> None:
    before = [RoundHost(name, 2) for name in "abc"]
    assert next_ranks(before, [RoundHost(name, 2) for name in after]) == ranks


def test_a_host_with_another_number_of_processes_is_another_one() -> None:
    assert next_ranks([RoundHost("a", 2)], [RoundHost("a", 1)]) == [None, None]


def test_those_that_stay_are_in_the_order_of_their_next_ranks() -> None:
    assert stayers([3, None, 0, 5]) == [2, 0, 3]


@pytest.mark.parametrize(
    ("following", "has_room"),
    [([0, 1, None], True), ([0, None, 1, None], True), ([0, None, None], False), ([None], False), ([0, 1], True)],
)
def test_half_of_the_ranks_and_more_can_take_all_of_the_state(following: list[int | None], *, has_room: bool) -> None:
    assert is_room_for(following) is has_room


_CLAIMS = [PartClaim(7, 3, part, 99) for part in range(3)]


@pytest.mark.parametrize(
    ("claims", "holders"),
    [
        (_CLAIMS, [0, 1, 2]),
        ([_CLAIMS[2], NO_PART, _CLAIMS[0], _CLAIMS[1]], [2, 3, 0]),
        (_CLAIMS[:2], None),
        ([NO_PART, NO_PART], None),
        ([*_CLAIMS[:2], replace(_CLAIMS[2], step=6)], None),
        ([*_CLAIMS[:2], replace(_CLAIMS[2], form=98)], None),
        ([*_CLAIMS, replace(_CLAIMS[0], step=6, parts=1)], [0, 1, 2]),
        ([replace(_CLAIMS[0], step=8), *_CLAIMS], None),
    ],
    ids=["whole", "with a joiner", "one lost", "none", "other step", "other model", "a stale one", "a newer one lost"],
)
def test_parts_count_only_as_a_whole(claims: list[PartClaim], holders: list[int] | None) -> None:
    assert holders_of(claims) == holders
