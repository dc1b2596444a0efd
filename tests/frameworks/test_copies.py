"""kubeai.torch: after a loss without notice a sharded training goes on from copies in the memory of other hosts."""

import signal
from itertools import pairwise
from pathlib import Path

import pytest

from tests.frameworks.frameworks_rounds import Rounds

pytestmark = pytest.mark.timeout(600)
_STEPS, _EVERY = 30, 4
_LOST = 14
_THIRD_COPY = 28
"""The first copy has 8 messages of the second rank, without means of AdamW, and each other one has 20."""
_COLLECTIVE_SECONDS = 10.0
"""As in the script."""


def _rounds(home: Path, root: Path, kind: str) -> Rounds:
    return Rounds(home, root / kind, kind, _STEPS, script="frameworks_handover.py")


def _goes_on_at(rounds: Rounds, name: str) -> list[int]:
    """Return the step with which the process went on each time that another number of ranks trained."""
    lines = [line for line in rounds.recorded(name) if line["event"] == "end"]
    return [after["step"] for before, after in pairwise(lines) if after["world"] != before["world"]]


def _since(rounds: Rounds, step: int) -> list[list[tuple[int, str]]]:
    """Return the losses from the last time on that each rank began this step."""
    found = []
    for name in "acd":
        losses = rounds.losses(name)
        begun = max(index for index, (each, _) in enumerate(losses) if each == step)
        found.append(losses[begun:])
    return found


def _lose_in_step(rounds: Rounds, step: int, lost: str, left: str, what: str = "dies") -> None:
    """Let ranks kill or freeze themselves in a step, and the others go on without them."""
    for name in lost:
        (rounds.root / f"{what}-in-step-{step}-{name}").touch()
    rounds.go_on_without(lost if what == "dies" else "", left)


def _assert_equal_to_a_checkpoint_of(step: int, rounds: Rounds, home: Path, root: Path) -> None:
    """Assert that from then on all is as if the training had gone back to a checkpoint of that step."""
    with _rounds(home, root, f"saved-{step}") as saved:
        saved.start("a", "b", "c", "d")
        _lose_in_step(saved, step + 1, "b", "acd")
        saved.finish("a", "c", "d")
    assert _goes_on_at(saved, "a") == [step]
    assert _since(rounds, step) == _since(saved, step)
    assert rounds.parameters("a") == saved.parameters("a")


@pytest.mark.brief
def test_a_loss_without_notice_goes_back_to_the_newest_copy_and_equals_a_checkpoint_in_every_bit(
    fsdp2: Path, tmp_path: Path
) -> None:
    """No file is written, and at most as many steps are repeated as there are between two copies."""
    with _rounds(fsdp2, tmp_path, f"copies-{_EVERY}") as rounds:
        rounds.start("a", "b", "c", "d")
        _lose_in_step(rounds, _LOST, "b", "acd")
        rounds.finish("a", "c", "d")
    (back,) = _goes_on_at(rounds, "a")
    assert _LOST - _EVERY <= back < _LOST
    assert not (rounds.root / "checkpoints").exists()
    _assert_equal_to_a_checkpoint_of(back, rounds, fsdp2, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "message",
    [
        pytest.param(0, id="before it says what it sends"),
        pytest.param(1, id="before it hears what it gets"),
        pytest.param(4, id="between two tensors that it sends"),
        pytest.param(12, id="between two tensors that it gets"),
    ],
)
def test_a_rank_that_dies_while_it_sends_or_receives_a_copy_leaves_the_one_before(
    fsdp2: Path, tmp_path: Path, message: int
) -> None:
    """Half a copy is never used."""
    with _rounds(fsdp2, tmp_path, f"copies-{_EVERY}") as rounds:
        struck = rounds.root / f"strike-copies-{_THIRD_COPY + message}-b"
        struck.write_text(str(int(signal.SIGKILL)), encoding="ascii")
        rounds.start("a", "b", "c", "d")
        rounds.go_on_without("b", "acd")
        rounds.finish("a", "c", "d")
    (back,) = _goes_on_at(rounds, "a")
    assert back in (_EVERY, 2 * _EVERY)
    _assert_equal_to_a_checkpoint_of(back, rounds, fsdp2, tmp_path)


@pytest.mark.long
def test_the_loss_of_a_rank_with_the_one_that_keeps_its_copy_goes_back_to_the_checkpoint(
    fsdp2: Path, tmp_path: Path
) -> None:
    """Here there is none, so all steps come again. A loss of two that keep no copy of each other costs no more."""
    with _rounds(fsdp2, tmp_path, f"copies-{_EVERY}") as rounds:
        rounds.start("a", "b", "c", "d")
        _lose_in_step(rounds, _LOST, "bd", "ac")
        _lose_in_step(rounds, _LOST + _EVERY, "c", "a")
        rounds.finish("a")
    first, second = _goes_on_at(rounds, "a")
    assert _LOST - _EVERY <= first < _LOST
    assert _LOST <= second < _LOST + _EVERY
    with _rounds(fsdp2, tmp_path / "neighbours", f"copies-{_EVERY}") as rounds:
        rounds.start("a", "b", "c", "d")
        _lose_in_step(rounds, _LOST, "bc", "ad")
        rounds.finish("a", "d")
    assert _goes_on_at(rounds, "a") == [0]


@pytest.mark.long
def test_a_frozen_rank_that_keeps_a_copy_holds_nobody_up_for_longer_than_a_collective(
    fsdp2: Path, tmp_path: Path
) -> None:
    with _rounds(fsdp2, tmp_path, f"copies-{_EVERY}") as rounds:
        rounds.start("a", "b", "c", "d")
        _lose_in_step(rounds, _LOST, "b", "acd", what="freezes")
        rounds.finish("a", "c", "d")
    (back,) = _goes_on_at(rounds, "a")
    at = [line["at"] for line in rounds.recorded("a") if line["event"] == "end"]
    assert _LOST - _EVERY <= back < _LOST
    assert max(after - before for before, after in pairwise(at)) < 2 * _COLLECTIVE_SECONDS


@pytest.mark.long
def test_a_state_that_one_rank_cannot_copy_costs_the_copies_and_not_the_training(fsdp2: Path, tmp_path: Path) -> None:
    """That rank says why, once, and the others that there is one; nobody waits for it."""
    with _rounds(fsdp2, tmp_path, f"copies-{_EVERY}") as rounds:
        (rounds.root / "cannot-copy-b").touch()
        rounds.start("a", "b", "c")
        rounds.finish("a", "b", "c")
    ended = "no further copies of the state in this round: "
    assert [step for step, _ in rounds.losses("a")] == list(range(_STEPS))
    assert rounds.output("b").count(f"{ended}TypeError: cannot pickle '_thread.lock' object") == 1
    for name in "ac":
        assert rounds.output(name).count(f"{ended}a rank cannot copy its part") == 1
