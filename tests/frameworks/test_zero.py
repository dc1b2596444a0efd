"""kubeai.torch: the state of a ZeroRedundancyOptimizer of DDP goes from owner to owner at a change."""

from collections.abc import Container
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.frameworks_rounds import Rounds

pytestmark = pytest.mark.timeout(600)
_EVERY, _LEAVE, _JOIN, _STEPS, _LOST = 10, 13, 23, 40, 14
_COPIES_EVERY = 4
_NAMES = "abcde"
_FLOAT_BYTES = 8
_MEANS = 2
"""Of AdamW."""
_RANDOM_BYTES = 2**17
"""So much is sent besides at a change, as random numbers."""


def _rounds(home: Path, root: Path, kind: str) -> Rounds:
    return Rounds(home, root / kind, kind, _STEPS, script="frameworks_zero.py")


def _four_three_four(home: Path, root: Path, kind: str) -> Rounds:
    """The second of four leaves, and another one comes."""
    with _rounds(home, root, kind) as rounds:
        rounds.four_three_four(_LEAVE, _JOIN, "deac")
    return rounds


def _lines(rounds: Rounds, name: str, *events: str) -> list[dict[str, Any]]:
    return [line for line in rounds.recorded(name) if line["event"] in events]


def _losses(rounds: Rounds) -> dict[str, list[tuple[int, str]]]:
    return {name: rounds.losses(name) for name in _NAMES}


def _saved(rounds: Rounds) -> list[int]:
    return [line["step"] for line in _lines(rounds, "a", "saved")]


def _states(rounds: Rounds) -> list[tuple[int, str, int]]:
    """Return what the first ranks have recorded of the whole state: the step, before or after it, and a number."""
    lines = sorted(
        (line for name in _NAMES for line in _lines(rounds, name, "before", "after")), key=lambda line: line["at"]
    )
    return [(line["step"], line["event"], line["state"]) for line in lines]


def _assert_nothing_changes_between_steps(states: list[tuple[int, str, int]], steps: int) -> None:
    pairs = [(one, other) for one, other in pairwise(states) if (one[1], other[1]) == ("after", "before")]
    assert len(pairs) == steps - 1
    assert all((one[0], one[2]) == (other[0], other[2]) for one, other in pairs)


def _owners(rounds: Rounds, change: int) -> dict[int, str]:
    """Return by the number of each parameter the rank that owned it after so many changes."""
    lines = [(name, line) for name in _NAMES for line in _lines(rounds, name, "owns")]
    number = sorted({line["round"] for _, line in lines})[change]
    return {owned: name for name, line in lines if line["round"] == number for owned in line["numbers"]}


def _moved(rounds: Rounds, change: int) -> int:
    """Return how many bytes of the optimizer's state have another owner after a change."""
    before, after, sizes = _owners(rounds, change), _owners(rounds, change + 1), _sizes(rounds)
    assert set(before) == set(after) == set(range(len(sizes)))
    return _MEANS * sum(sizes[number] for number, owner in before.items() if owner != after[number])


def _sizes(rounds: Rounds) -> list[int]:
    """Return how many bytes each parameter has."""
    found = rounds.parameters(rounds.members[0])
    return [len(each) * _FLOAT_BYTES for name, each in found.items() if name.endswith(("weight", "bias"))]


def _sent(rounds: Rounds, first: int, end: int) -> int:
    """Return how many bytes all ranks together have sent between two steps."""
    total = 0
    for name in _NAMES:
        step = -1
        for line in rounds.recorded(name):
            step = line["step"] if line["event"] == "end" else step
            total += line["bytes"] if line["event"] == "sent" and first <= step < end else 0
    return total


@pytest.mark.long
def test_a_change_from_owner_to_owner_equals_one_through_files_in_every_bit(fsdp2: Path, tmp_path: Path) -> None:
    """Whichever way it goes, the state after a step is the one before the next step, also with other owners.

    No file is written. Parameters go to the rank that joins alone, and what a leaver has goes by way of another rank.
    """
    handed = _four_three_four(fsdp2, tmp_path, "memory")
    filed = _four_three_four(fsdp2, tmp_path, "file")
    assert handed.parameters(handed.members[0]) == filed.parameters(filed.members[0])
    assert _losses(handed) == _losses(filed)
    assert [state for *_, state in _states(handed)] == [state for *_, state in _states(filed)]
    _assert_nothing_changes_between_steps(_states(handed), _STEPS)
    assert [len(each) for each in _losses(handed).values()] == [_STEPS, _LEAVE, _STEPS, _STEPS, _STEPS - _JOIN]
    assert _saved(handed) == list(range(_EVERY, _STEPS + 1, _EVERY))
    assert _saved(filed) == sorted([*_saved(handed), _LEAVE, _JOIN])
    model, leave, join = sum(_sizes(handed)), _moved(handed, 0), _moved(handed, 1)
    left = _MEANS * sum(_sizes(handed)[number] for number, owner in _owners(handed, 0).items() if owner == "b")
    assert leave > left > 0
    assert leave <= _sent(handed, 0, _LEAVE) <= leave + left + _RANDOM_BYTES
    assert model + join <= _sent(handed, _LEAVE, _JOIN) <= model + join + _RANDOM_BYTES
    assert _sent(filed, 0, _STEPS) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "steps_back"),
    [("memory", [_LOST - _EVERY]), (f"copies-{_COPIES_EVERY}", range(_COPIES_EVERY + 1))],
    ids=["checkpoint", "copy"],
)
def test_a_rank_that_is_lost_inside_the_optimizer_costs_the_steps_since_the_checkpoint_or_copy(
    fsdp2: Path, tmp_path: Path, kind: str, steps_back: Container[int]
) -> None:
    """Some parameters have changed by then, others have not, and the states that it owned are gone.

    The others leave while broadcasts of the optimizer are under way.
    """
    with _rounds(fsdp2, tmp_path, kind) as rounds:
        (rounds.root / f"ends-in-the-optimizer-{_LOST}-b").touch()
        rounds.start("a", "b", "c", "d")
        rounds.go_on_without("b", "acd")
        rounds.finish("a", "c", "d")
    steps = [step for step, _ in rounds.losses("a")]
    back = steps[_LOST + 1]
    assert _LOST - back in steps_back
    assert steps == [*range(_LOST + 1), *range(back, _STEPS)]
    _assert_begins_again_with(back, _states(rounds))


@pytest.mark.long
def test_a_rank_that_is_lost_is_made_up_for_by_its_copy(fsdp2: Path, tmp_path: Path) -> None:
    """With PeerCopies and no checkpoint at all."""
    with _rounds(fsdp2, tmp_path, f"copies-{_COPIES_EVERY}") as rounds:
        (rounds.root / f"dies-in-step-{_LOST}-b").touch()
        rounds.start("a", "b", "c", "d")
        rounds.go_on_without("b", "acd")
        rounds.finish("a", "c", "d")
    steps = [step for step, _ in rounds.losses("a")]
    back = steps[_LOST]
    assert _LOST - _COPIES_EVERY <= back <= _LOST
    assert steps == [*range(_LOST), *range(back, _STEPS)]
    assert not (rounds.root / "checkpoints").exists()
    _assert_begins_again_with(back, _states(rounds))


def _assert_begins_again_with(step: int, states: list[tuple[int, str, int]]) -> None:
    """Assert that a step was made twice, from one state."""
    begun = [state for each, event, state in states if (each, event) == (step, "before")]
    assert len(begun) == 2
    assert begun[0] == begun[1]
    assert states[-1][:2] == (_STEPS, "after")
