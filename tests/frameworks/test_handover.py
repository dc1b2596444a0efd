"""kubeai.torch: at an announced change the parts of a sharded state go from memory to memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from string import ascii_lowercase

import pytest

from tests.frameworks.frameworks_rounds import Rounds

pytestmark = pytest.mark.timeout(600)
_FEATURES, _HIDDEN, _EVERY = 32, 3002, 10
"""Those of the script."""
_TENSORS = 3
"""Of each parameter: itself and AdamW's two means."""
_FLOAT_BYTES = 8
_LEAVE, _JOIN, _STEPS = 13, 23, 40
_CHANGES = range(3, 83, 4)
"""The steps of twenty changes, at none of which a checkpoint is due."""
_NAMES = ascii_lowercase
_SMALL = {"tensors": 2**16}
"""Bytes of other tensors, as of random numbers, which vary. A part has nine times as many and more."""
_GROWN = 16 * 2**20
"""So much resident memory may be added: torch caches 0.3 MB for the DTensors of each mesh, and memory is fragmented."""


def _rounds(home: Path, root: Path, kind: str, steps: int = _STEPS) -> Rounds:
    return Rounds(home, root / kind, kind, steps, script="frameworks_handover.py")


def _four_three_four(home: Path, root: Path, kind: str) -> Rounds:
    """The second of four leaves, and another one comes, both at steps that are the same for each kind."""
    with _rounds(home, root, kind) as rounds:
        rounds.four_three_four(_LEAVE, _JOIN)
    return rounds


def _losses(rounds: Rounds) -> dict[str, list[tuple[int, str]]]:
    return {name: rounds.losses(name) for name in _NAMES}


def _parameters(rounds: Rounds) -> dict[str, list[float]]:
    """All parameters at the end, which rank 0 has."""
    found = rounds.parameters(rounds.members[0])
    assert len(found["0.weight"]) == _HIDDEN * _FEATURES
    return found


def _saved(rounds: Rounds, name: str) -> list[int]:
    return [line["step"] for line in rounds.recorded(name) if line["event"] == "saved"]


def _sent(rounds: Rounds, first: int, end: int) -> int:
    """How many bytes all ranks together have sent between two steps."""

    def of(name: str) -> Iterator[int]:
        step = -1
        for line in rounds.recorded(name):
            step = line["step"] if line["event"] == "end" else step
            if line["event"] == "sent" and first <= step < end:
                yield line["bytes"]

    return sum(sum(of(name)) for name in _NAMES)


def _least(before: list[str], after: list[str]) -> int:
    """How many bytes have to be sent, as parts of consecutive rows are in the order of the ranks."""
    row_bytes = {_HIDDEN: (_FEATURES + 1) * _FLOAT_BYTES, 1: (_HIDDEN + 1) * _FLOAT_BYTES}

    def owners(rows: int, ranks: list[str]) -> list[str]:
        return [ranks[row // -(-rows // len(ranks))] for row in range(rows)]

    return _TENSORS * sum(
        size
        for rows, size in row_bytes.items()
        for old, new in zip(owners(rows, before), owners(rows, after), strict=True)
        if old != new
    )


@pytest.mark.brief
def test_a_change_from_memory_to_memory_equals_one_through_files_in_every_bit(fsdp2: Path, tmp_path: Path) -> None:
    """Also in losses with dropout, and what is not divided comes from rank 0. No file is written.

    Hardly more is sent than has to be.
    """
    handed = _four_three_four(fsdp2, tmp_path, "memory")
    filed = _four_three_four(fsdp2, tmp_path, "file")
    assert _parameters(handed) == _parameters(filed)
    assert _losses(handed) == _losses(filed)
    assert [len(each) for each in _losses(handed).values() if each] == [_STEPS, _LEAVE, _STEPS, _STEPS, _STEPS - _JOIN]
    assert _saved(handed, "a") == list(range(_EVERY, _STEPS + 1, _EVERY))
    assert _saved(filed, "a") == sorted([*_saved(handed, "a"), _LEAVE, _JOIN])
    ended = [line for name in "acde" for line in handed.recorded(name) if line["event"] == "end"]
    assert {line["rest_of"] for line in ended if line["step"] in (_LEAVE, _JOIN)} == {0}
    leave, join = _least([*"abcd"], [*"acd"]), _least([*"acd"], [*"acde"])
    assert leave <= _sent(handed, 0, _LEAVE) <= 1.1 * leave
    assert join <= _sent(handed, _LEAVE, _JOIN) <= 1.1 * join
    assert _sent(filed, 0, _STEPS) == 0


def _members(seed: int) -> list[list[str]]:
    """The members of 21 rounds, 2 to 4 in a new order each time. One stays; at some changes others leave and join."""
    random = Random(seed)  # noqa: S311 - chosen, not secret
    found, joiners = [[*"abc"]], iter(_NAMES[3:])
    for _ in _CHANGES:
        others = [name for name in found[-1] if name != "a"]
        size = random.choice([size for size in (2, 3, 4) if size != len(found[-1])])
        exchanged = random.choice((0, 0, 1)) if size > 2 else 0
        staying = ["a", *random.sample(others, min(size - exchanged, len(found[-1])) - 1)]
        members = [*staying, *(next(joiners) for _ in range(size - len(staying)))]
        found.append(random.sample(members, size))
    return found


def _twenty_changes(home: Path, root: Path, kind: str, members: list[list[str]]) -> Rounds:
    with _rounds(home, root, kind, steps=_CHANGES[-1] + 5) as rounds:
        rounds.agree(*_CHANGES)
        rounds.start(*sorted({name for each in members[1:] for name in each} - set(members[0])), joins=True)
        rounds.start(*members[0])
        for step, names in zip(_CHANGES, members[1:], strict=True):
            rounds.regroup_at(step, *names)
        rounds.finish(*members[-1])
    return rounds


@pytest.mark.long
def test_twenty_changes_equal_those_through_files_in_every_bit_and_leave_nothing_behind(
    fsdp2: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Leaves and joins of ranks of every number, whose order changes, too. No step is repeated."""
    members = _members(3)
    handed = _twenty_changes(fsdp2, tmp_path, "memory", members)
    filed = _twenty_changes(fsdp2, tmp_path, "file", members)
    assert _parameters(handed) == _parameters(filed)
    assert _losses(handed) == _losses(filed)
    ended = [line for line in handed.recorded("a") if line["event"] == "end"]
    assert [line["step"] for line in ended] == list(range(handed.steps))
    assert _saved(handed, "a") == list(range(_EVERY, handed.steps + 1, _EVERY))
    rounds = [[line for line in ended if line["step"] in range(step, step + 4)] for step in _CHANGES]
    for what in ("descriptors", "threads", "tensors"):
        most = [(lines[0]["world"], max(line[what] for line in lines)) for lines in rounds]
        first, last = dict(reversed(most[2:8])), dict(most[8:])
        record_property(f"{what} by ranks, early and late", (first, last))
        assert all(last[world] <= first[world] + _SMALL.get(what, 0) for world in (2, 3, 4)), (what, first, last)
    grown = ended[-1]["resident"] - max(line["resident"] for line in rounds[4])
    record_property("memory grown in KiB", grown // 1024)
    assert grown < _GROWN


@pytest.mark.long
def test_a_build_that_divides_otherwise_goes_back_once_and_restarts_nobody(fsdp2: Path, tmp_path: Path) -> None:
    """Two ranks have a mesh of two dimensions. The next change goes through a checkpoint, and no step is repeated."""
    with _rounds(fsdp2, tmp_path, "otherwise") as rounds:
        rounds.agree(_LEAVE)
        rounds.start("a", "b", "c")
        rounds.start("e", joins=True)
        rounds.until_holding(_LEAVE)
        (rounds.root / "agreed").unlink()  # they come to this step again
        rounds.regroup_at(_LEAVE, "a", "c")
        rounds.agree(_JOIN)
        rounds.regroup_at(_JOIN, "a", "c", "e")
        rounds.finish("a", "c", "e")
    assert [step for step, _ in rounds.losses("a")] == [*range(_LEAVE), *range(_EVERY, _STEPS)]
    assert _saved(rounds, "a") == sorted([*range(_EVERY, _STEPS + 1, _EVERY), _JOIN])


@pytest.mark.long
def test_without_the_time_for_it_a_change_goes_through_a_checkpoint_from_the_start(fsdp2: Path, tmp_path: Path) -> None:
    """No row is sent, no step is repeated, and all ranks say why once."""
    with _rounds(fsdp2, tmp_path, "hurried") as rounds:
        rounds.agree(_LEAVE, _JOIN)
        rounds.start("a", "b", "c")
        rounds.regroup_at(_LEAVE, "a", "c")
        rounds.regroup_at(_JOIN, "c", "a")
        rounds.finish("a", "c")
    assert [step for step, _ in rounds.losses("a")] == list(range(_STEPS))
    assert _saved(rounds, "a") == sorted([*range(_EVERY, _STEPS + 1, _EVERY), _LEAVE, _JOIN])
    assert _sent(rounds, 0, _STEPS) == 0
    assert [rounds.output(name).count("there is not enough time for its size") for name in "abc"] == [1, 1, 1]


@pytest.mark.long
def test_ranks_that_are_ended_instead_save_before(fsdp2: Path, tmp_path: Path) -> None:
    """As when the hosts are too few in the meantime, and all processes are restarted later."""
    with _rounds(fsdp2, tmp_path, "memory") as rounds:
        rounds.agree(_LEAVE)
        rounds.start("a", "b")
        rounds.until_holding(_LEAVE)
        rounds.terminate("a", "b")
    assert _saved(rounds, "a") == _saved(rounds, "b") == [_EVERY, _LEAVE]
