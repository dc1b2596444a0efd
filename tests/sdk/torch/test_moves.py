"""Which rows go from which rank to which when the number of ranks changes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeai.torch.decisions import RoundHost
from kubeai.torch.moves import (
    EVERY_PART,
    NO_PART,
    PartClaim,
    RowMove,
    WholeState,
    heirs,
    is_room_for,
    keepers,
    moves,
    newest_whole,
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
    assert sent == [RowMove(1, 0, 3, 4, 1), RowMove(2, 1, 6, 8, 2), RowMove(3, 2, 9, 12, 3)]


@given(st.integers(1, 60), st.data())
def test_a_tensor_that_one_part_owns_goes_whole_from_owner_to_owner(rows: int, data: st.DataObject) -> None:
    _, holders, takers = data.draw(_changes())
    before, after = (data.draw(st.integers(0, len(ranks) - 1)) for ranks in (holders, takers))
    expected = [RowMove(holders[before], takers[after], 0, rows, before)]
    assert moves(rows, holders, takers, before, after) == expected


@given(st.integers(1, 60), st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 9))
def test_a_tensor_that_each_part_has_is_sent_only_to_those_that_join(rows: int, holders: list[int], size: int) -> None:
    """From different ranks, as far as there are some."""
    found = moves(rows, holders, range(size), EVERY_PART, EVERY_PART)
    assert [(move.target, move.first, move.end) for move in found] == [(rank, 0, rows) for rank in range(size)]
    assert all(holders[move.part] == move.source for move in found)
    assert all(move.source == move.target for move in found if move.target in holders)
    joiners = [move.part for move in found if move.target not in holders]
    assert max(map(joiners.count, joiners), default=0) <= -(-size // len(holders))


@given(st.integers(1, 60), _changes())
def test_a_tensor_that_is_divided_can_become_one_that_each_part_has(
    rows: int, change: tuple[int, Sequence[int], Sequence[int]]
) -> None:
    """Each part gets each row once, from the part that has it."""
    _, holders, takers = change
    found = moves(rows, holders, takers, None, EVERY_PART)
    for target in takers:
        spans = sorted((move.first, move.end) for move in found if move.target == target)
        assert [row for first, end in spans for row in range(first, end)] == list(range(rows))
    for move in found:
        first, end = rows_of(rows, len(holders), move.part)
        assert first <= move.first < move.end <= end
        assert move.source == holders[move.part]


@pytest.mark.parametrize("owners", [(EVERY_PART, EVERY_PART), (None, EVERY_PART), (0, 1)])
def test_a_tensor_without_rows_is_not_sent(owners: tuple[int | None, int]) -> None:
    assert moves(0, [0, 1], [1, 0], *owners) == []


@st.composite
def _leaves(draw: st.DrawFn) -> list[int | None]:
    """Draws for each rank of a round which one it is in the next round; at least one stays."""
    stays = draw(st.lists(st.booleans(), min_size=1, max_size=9).filter(any))
    numbers = iter(draw(st.permutations(range(sum(stays)))))
    return [next(numbers) if each else None for each in stays]


@given(_leaves())
def test_a_rank_that_stays_keeps_its_tensors_and_those_of_leavers_are_spread(following: list[int | None]) -> None:
    found, staying = heirs(following), stayers(following)
    assert [staying[part] for rank, part in enumerate(found) if rank in staying] == sorted(staying)
    given_up = [part for rank, part in enumerate(found) if rank not in staying]
    most = -(-len(given_up) // len(staying))
    assert all(given_up.count(part) <= most for part in range(len(staying)))


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


@given(st.integers(0, 60), st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 5))
def test_a_rank_may_have_several_parts(rows: int, holders: list[int], takers: int) -> None:
    """As after a loss, when one of those that are left has the copy of the part that is lost."""
    received: dict[int, list[int]] = {rank: [] for rank in range(takers)}
    for move in moves(rows, holders, range(takers)):
        first, end = rows_of(rows, len(holders), move.part)
        assert first <= move.first < move.end <= end
        assert move.source == holders[move.part]
        received[move.target] += range(move.first, move.end)
    assert received == {rank: sorted(found) for rank, found in _parts(rows, range(takers)).items()}


_CLAIMS = [PartClaim(7, 3, part, 99) for part in range(3)]
_OLDER = [replace(claim, step=5) for claim in _CLAIMS]


@pytest.mark.parametrize(
    ("claims", "step", "holders"),
    [
        (_CLAIMS, 7, (0, 1, 2)),
        ([_CLAIMS[2], NO_PART, _CLAIMS[0], _CLAIMS[1]], 7, (2, 3, 0)),
        ([*_CLAIMS[:2], replace(_CLAIMS[2], step=6)], None, ()),
        ([*_CLAIMS[:2], replace(_CLAIMS[2], form=98)], None, ()),
        ([*_CLAIMS[:2], replace(_CLAIMS[2], part=3)], None, ()),
        (_CLAIMS[:2], None, ()),
        ([NO_PART, NO_PART], None, ()),
        ([*_CLAIMS, replace(_CLAIMS[0], step=6, parts=1)], 7, (0, 1, 2)),
        ([replace(_CLAIMS[0], step=8), *_CLAIMS], 7, (1, 2, 3)),
    ],
    ids=[
        "whole",
        "with a joiner",
        "another step",
        "another model",
        "a part that cannot be",
        "one lost",
        "none",
        "a stale one",
        "a newer one lost",
    ],
)
def test_parts_count_only_as_a_whole(claims: list[PartClaim], step: int | None, holders: tuple[int, ...]) -> None:
    expected = None if step is None else WholeState(step, 99, holders)
    assert newest_whole([[claim] for claim in claims]) == expected


@pytest.mark.parametrize(
    ("claims", "step", "holders"),
    [
        ([[_CLAIMS[0], _CLAIMS[2]], [_CLAIMS[1], _CLAIMS[0]], [_CLAIMS[2], _CLAIMS[1]]], 7, (0, 1, 2)),
        ([[_CLAIMS[0], _CLAIMS[2]], [_CLAIMS[1], _CLAIMS[0]]], 7, (0, 1, 0)),
        ([[_CLAIMS[0], NO_PART, _OLDER[0], _OLDER[2]], [_CLAIMS[1], NO_PART, _OLDER[1], NO_PART]], 5, (0, 1, 0)),
        ([[_CLAIMS[0], NO_PART], [_CLAIMS[1], _CLAIMS[0]]], None, ()),
    ],
    ids=["each has its own", "one is lost", "one is lost before its copy was whole", "one is lost with its keeper"],
)
def test_a_copy_stands_for_the_part_of_a_rank_that_is_lost(
    claims: list[list[PartClaim]], step: int | None, holders: tuple[int, ...]
) -> None:
    assert newest_whole(claims) == (None if step is None else WholeState(step, 99, holders))


_HOSTS = st.lists(st.integers(1, 8), min_size=2, max_size=6)


def _hosts(processes: Sequence[int]) -> list[int]:
    return [host for host, count in enumerate(processes) for _ in range(count)]


@given(_HOSTS)
def test_each_rank_has_its_copy_on_the_next_host(processes: list[int]) -> None:
    hosts = _hosts(processes)
    found = [hosts[keeper] for keeper in keepers(processes)]
    assert found == [(host + 1) % len(processes) for host in hosts]


@given(_HOSTS)
def test_the_ranks_of_a_host_keep_equally_many_copies_or_one_more(processes: list[int]) -> None:
    found = keepers(processes)
    base = 0
    for count in processes:
        kept = [found.count(rank) for rank in range(base, base + count)]
        assert max(kept) - min(kept) <= 1
        base += count


def test_ranks_of_equal_hosts_keep_the_copy_of_their_own_number() -> None:
    assert keepers([2, 2, 2]) == [2, 3, 4, 5, 0, 1]
