"""kubeai.torch.loop: a script keeps its own loop, and trains as if no host had come or gone."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frameworks.frameworks_installation import CHOSEN, OLDEST
from tests.frameworks.frameworks_rounds import BACKEND, Rounds

pytestmark = pytest.mark.timeout(600)
_CHECKOUT = Path(__file__).parents[2]
_STEPS = 150
_FREED_SECONDS = 30.0
"""Half the time for which a collective waits in this script."""
_TOLERANCES = {"whole": 1e-9, "mixed": 5e-2, "parts": 1e-9}
"""Relative. Sums over other numbers of ranks are rounded differently, in numbers of 53 bits, or 8 with autocast."""
_HAS_REPLICAS_OF_PARTS = pytest.mark.skipif(
    CHOSEN is OLDEST, reason="torch 2.7 asserts an event of a GPU in FSDP2 with replicas"
)


def _elastic(frameworks: Path, root: Path, kind: str, steps: int = _STEPS) -> Rounds:
    return Rounds(frameworks, root / "elastic", kind, steps, script="frameworks_own_loop.py")


def _reference(frameworks: Path, root: Path, kind: str) -> Rounds:
    with Rounds(frameworks, root / "alone", kind, _STEPS, 0.0, script="frameworks_own_loop.py") as alone:
        alone.run_plainly()
        return alone


def _losses(rounds: Rounds, names: str) -> dict[int, list[float]]:
    """The loss of each micro-batch, by step; of the last attempt of each rank."""
    attempts: dict[tuple[int, str], list[float]] = {}
    for name in names if names != "alone" else [names]:
        for line in rounds.recorded(name):
            if line["event"] == "end":
                assert (line["step"], name) not in attempts, f"step {line['step']} was trained twice"
                attempts[line["step"], name] = line["losses"]
    steps: dict[int, list[float]] = {}
    for (step, _), losses in attempts.items():
        steps[step] = sorted(steps.get(step, []) + losses)
    return steps


def _evaluations(rounds: Rounds, names: str) -> dict[int, float]:
    recorded = (line for name in (names if names != "alone" else [names]) for line in rounds.recorded(name))
    return {line["step"]: line["loss"] for line in recorded if line["event"] == "evaluated"}


def _assert_as_reference(rounds: Rounds, alone: Rounds, survivor: str, kind: str) -> None:
    tolerance = _TOLERANCES[kind]
    expected = alone.parameters("alone")
    for name, values in rounds.parameters(survivor).items():
        assert values == pytest.approx(expected[name], rel=tolerance, abs=tolerance / 10)
    losses = _losses(alone, "alone")
    assert len(losses) == _STEPS
    for step, found in _losses(rounds, "abcd").items():
        assert found == pytest.approx(losses[step], rel=tolerance, abs=tolerance), f"step {step}"
    assert _losses(rounds, "abcd").keys() == losses.keys()
    assert _seen(rounds, survivor) == _seen(alone, "alone")
    assert _evaluations(rounds, "abcd") == pytest.approx(_evaluations(alone, "alone"), rel=tolerance)


def _seen(rounds: Rounds, name: str) -> int:
    seen: int = [line["seen"] for line in rounds.recorded(name) if line["event"] == "end"][-1]
    return seen


def _grow_and_shrink(rounds: Rounds) -> None:
    """Grow from two to four, and go on with three of them in another order."""
    rounds.start("a", "b")
    rounds.until_ready()
    rounds.start("c", "d", joins=True)
    rounds.regroup("a", "b", "c", "d")
    rounds.until_step(rounds.step_of("a") + 3)
    rounds.regroup("d", "b", "c")
    rounds.until_step(rounds.step_of("b") + 3)


@pytest.mark.parametrize(
    "kind", [pytest.param("whole", marks=pytest.mark.brief), pytest.param("mixed", marks=pytest.mark.long)]
)
def test_a_loop_with_everything_trains_as_one_process(frameworks: Path, tmp_path: Path, kind: str) -> None:
    """Two grow to four and shrink to three; one dies between unscaling and the optimizers; one leaves.

    Dropout, learning rates, scales of the loss, evaluations and the order of the samples are those of one process
    without a launcher.
    """
    with _elastic(frameworks, tmp_path, kind) as rounds:
        _grow_and_shrink(rounds)
        rounds.let_die("c", "norm")
        rounds.form("d", "b")
        rounds.until_step(rounds.step_of("b") + 3)
        rounds.regroup("b")
        rounds.finish("b")
    _assert_as_reference(rounds, _reference(frameworks, tmp_path, kind), "b", kind)
    lost = [line for line in rounds.recorded("b") if line["event"] == "lost"]
    assert len(lost) == 1
    assert BACKEND in lost[0]["error"].lower()


@pytest.mark.long
def test_nobody_waits_for_a_rank_that_waits_for_the_next_round(
    frameworks: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """One of four dies. A collective of the others could wait for 60 s.

    The variables of the script still refer to its wrapper, and so to the connections of the lost round. So does a
    worker of the dead process's loader, which lives on.
    """
    with _elastic(frameworks, tmp_path, "whole", 400) as rounds:
        rounds.start("a", "b", "c", "d")
        rounds.until_ready()
        rounds.until_step(3)
        rounds.let_die("b", "norm")
        died = time.time()
        rounds.form("a", "c", "d")
        rounds.until_step(rounds.step_of("a") + 3)
        recorded = {name: rounds.recorded(name) for name in "acd"}
    lost = {name: [line for line in lines if line["event"] == "lost"] for name, lines in recorded.items()}
    assert [len(lines) for lines in lost.values()] == [1, 1, 1]
    assert all(lines[0]["kept"] == "DistributedDataParallel" for lines in lost.values())
    freed = max(lines[0]["at"] - died for lines in lost.values())
    record_property("freed after seconds", round(freed, 2))
    assert freed < _FREED_SECONDS


@pytest.mark.long
def test_a_rank_that_is_lost_after_the_last_step_is_told_and_waited_for(frameworks: Path, tmp_path: Path) -> None:
    """The others say so at once, and end together in the next round."""
    with _elastic(frameworks, tmp_path, "whole", 20) as rounds:
        rounds.start("a", "b", "c")
        rounds.let_die("b", "end")
        rounds.until_lost("a", "c")
        rounds.form("a", "c")
        rounds.finish("a", "c")
    ended = [line["step"] for line in rounds.recorded("a") if line["event"] == "end"]
    assert ended == list(range(20))


@pytest.mark.brief
def test_a_forked_process_drops_the_connections_of_the_group_and_nothing_else(frameworks: Path) -> None:
    """Also after one is closed, and another file has got its number."""
    script = Path(__file__).with_name("frameworks_forks.py")
    variables = {**os.environ, "PYTHONPATH": str(_CHECKOUT / "sdk")}
    done = subprocess.run(
        [frameworks / "bin" / "python", script], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@_HAS_REPLICAS_OF_PARTS
@pytest.mark.long
def test_parts_on_a_mesh_of_two_dimensions_train_as_one_process(fsdp2: Path, tmp_path: Path) -> None:
    """FSDP2 with replicas (HSDP): the mesh has another shape in each round. Changes go through checkpoints."""
    with _elastic(fsdp2, tmp_path, "parts") as rounds:
        _grow_and_shrink(rounds)
        rounds.regroup("b", "d")
        rounds.finish("b", "d")
    _assert_as_reference(rounds, _reference(fsdp2, tmp_path, "parts"), "b", "parts")
    assert rounds.output("b").count("the state goes through a checkpoint: the mesh of") == 1


@pytest.mark.parametrize("kind", ["whole", pytest.param("parts", marks=_HAS_REPLICAS_OF_PARTS)])
@pytest.mark.long
def test_a_rank_that_is_alone_goes_on_in_every_bit(fsdp2: Path, tmp_path: Path, kind: str) -> None:
    """Nothing is summed over ranks, and the round after is the one before."""
    with _elastic(fsdp2, tmp_path, kind) as rounds:
        rounds.start("a")
        rounds.until_ready()
        for _ in range(3):
            rounds.until_step(rounds.step_of("a") + 3)
            rounds.regroup("a")
        rounds.finish("a")
    alone = _reference(fsdp2, tmp_path, kind)
    assert rounds.parameters("a") == alone.parameters("alone")
    assert _losses(rounds, "a") == _losses(alone, "alone")


@pytest.mark.long
def test_the_error_of_a_loop_is_its_own(frameworks: Path, tmp_path: Path) -> None:
    """It is a RuntimeError as those of collectives are, and is no `RankLost`: it ends the process with its own line."""
    with _elastic(frameworks, tmp_path, "whole", 400) as rounds:
        rounds.start("a", "b", "c")
        rounds.until_ready()
        rounds.until_step(3)
        _, output = rounds.break_off("b", "backward")
        rounds.form("a", "c")
        rounds.until_step(rounds.step_of("a") + 3)
        rounds.regroup("a")
        rounds.until_step(rounds.step_of("a") + 3)
    assert "torch.zeros(2, 3) @ torch.zeros(2, 3)" in output
    assert "RankLost" not in output
    assert [line["event"] for line in rounds.recorded("a")].count("lost") == 1
