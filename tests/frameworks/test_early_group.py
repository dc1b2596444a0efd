"""kubeai.torch: processes connect for the round that may follow while they train, and use that if it does follow."""

import signal
from itertools import pairwise
from pathlib import Path

import pytest

from tests.frameworks.frameworks_rounds import Rounds, used

pytestmark = pytest.mark.timeout(600)
_STEPS = 200


def _groups(rounds: Rounds, name: str) -> list[bool]:
    """For each group that a process has formed, whether its connections were made early."""
    return [line["early"] for line in rounds.recorded(name) if line["event"] == "group"]


def _assert_as_alone(rounds: Rounds, first: str, tmp_path: Path) -> None:
    """Assert that rank 0 of the last round ends as one process that was never disturbed, with the same samples."""
    with Rounds(rounds.home, tmp_path / "alone", "exact", _STEPS, step_seconds=0.0) as alone:
        alone.run_alone()
    for key, values in alone.parameters("alone").items():
        assert rounds.parameters(first)[key] == pytest.approx(values, rel=1e-9)  # sums of three are rounded
    assert list(used([rounds.recorded(each) for each in "abcd"])) == list(used([alone.recorded("alone")]))


def _regroup_foretold(rounds: Rounds, *names: str) -> None:
    rounds.until_step(rounds.step_of("a") + 3)
    rounds.foretell(*names)
    rounds.regroup(*names)


@pytest.mark.brief
def test_a_round_that_was_foretold_begins_with_the_connections_that_were_made(frameworks: Path, tmp_path: Path) -> None:
    """At a join and at a leave, and what was foretold before that is dropped."""
    with Rounds(frameworks, tmp_path / "elastic", "exact", _STEPS) as rounds:
        rounds.start("a", "b", "d")
        rounds.until_ready()
        rounds.start("c", joins=True)
        rounds.foretell("a", "b")
        _regroup_foretold(rounds, "a", "c", "b", "d")
        _regroup_foretold(rounds, "c", "a", "d")
        rounds.finish("a", "c", "d")
    assert _groups(rounds, "a") == _groups(rounds, "d") == [False, True, True]
    assert _groups(rounds, "c") == [True, True]
    assert _groups(rounds, "b") == [False, True]
    _assert_as_alone(rounds, "c", tmp_path)


@pytest.mark.brief
@pytest.mark.parametrize("is_foretold", [True, False])
def test_one_leaves_and_another_joins_in_one_round(frameworks: Path, tmp_path: Path, *, is_foretold: bool) -> None:
    """The one that joins is the new rank 0, and gets its state from one that stays."""
    with Rounds(frameworks, tmp_path / "elastic", "exact", _STEPS) as rounds:
        rounds.start("a", "b", "d")
        rounds.until_ready()
        rounds.start("c", joins=True)
        rounds.until_step(rounds.step_of("a") + 3)
        if is_foretold:
            rounds.foretell("c", "b", "d")
        rounds.regroup("c", "b", "d")
        rounds.finish("c", "b", "d")
    assert _groups(rounds, "c") == [is_foretold]
    assert _groups(rounds, "b") == _groups(rounds, "d") == [False, is_foretold]
    _assert_as_alone(rounds, "c", tmp_path)


def test_a_round_that_was_not_foretold_forms_its_own_group(frameworks: Path, tmp_path: Path) -> None:
    """Other members, another order, or a process that has died and whose successor has no part of the connections."""
    with Rounds(frameworks, tmp_path / "elastic", "exact", _STEPS) as rounds:
        rounds.start("a", "b", "c")
        rounds.until_ready()
        rounds.foretell("a", "b")
        rounds.regroup("a", "b", "c")
        rounds.foretell("a", "c", "b")
        rounds.regroup("a", "b", "c")
        rounds.start("d", joins=True)
        rounds.foretell("a", "b", "c", "d")
        rounds.kill("d")
        rounds.start("d", joins=True)
        rounds.regroup("a", "b", "c", "d")
        rounds.finish("a", "b", "c", "d")
    assert _groups(rounds, "a") == [False] * 4
    assert _groups(rounds, "d") == [False]
    _assert_as_alone(rounds, "a", tmp_path)


@pytest.mark.parametrize("strike", [signal.SIGKILL, signal.SIGSTOP], ids=lambda each: each.name)
def test_nobody_waits_for_a_process_that_never_connects(
    frameworks: Path, tmp_path: Path, strike: signal.Signals
) -> None:
    """The others train meanwhile, and go on without it."""
    with Rounds(frameworks, tmp_path / "elastic", "exact", _STEPS) as rounds:
        rounds.start("a", "b")
        rounds.until_ready()
        rounds.start("c", joins=True)
        rounds.send("c", strike)
        rounds.let_go("c")
        rounds.foretell("a", "b", "c", waits=False)
        rounds.until_step(rounds.step_of("a") + 10)
        rounds.bury("c")
        rounds.foretell("b", "a")
        rounds.regroup("b", "a")
        rounds.finish("a", "b")
    assert _groups(rounds, "a") == [False, True]
    _assert_as_alone(rounds, "b", tmp_path)


@pytest.mark.long
def test_twenty_rounds_that_were_foretold_leave_nothing_behind(frameworks: Path, tmp_path: Path) -> None:
    """Every other one is dropped for another round."""
    with Rounds(frameworks, tmp_path / "elastic", "replicated", 100_000, step_seconds=0.02) as rounds:
        rounds.start("a", "b", "c")
        rounds.until_ready()
        for _ in range(22):
            rounds.until_step(rounds.step_of("a") + 3)
            rounds.foretell("a", "c", "b")
            _regroup_foretold(rounds, "a", "b", "c")
        rounds.until_step(rounds.step_of("a") + 50)
        ended = [line for line in rounds.recorded("a") if line["event"] == "end"]
    assert all(_groups(rounds, "a")[1:])
    assert all(after["step"] == before["step"] + 1 for before, after in pairwise(ended))
    early, late = ended[60], ended[-1]
    for name in ("descriptors", "threads"):
        assert late[name] <= early[name], name
    assert late["resident"] - early["resident"] < 8 * 2**20
