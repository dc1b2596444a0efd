"""kubeai.torch: processes enter one round after another without a restart, and train as one that was not disturbed."""

import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.frameworks.frameworks_rounds import Rounds, used

pytestmark = pytest.mark.timeout(600)
_LOST_SECONDS = 30.0
"""For how long a process of these tests waits for the next round after a collective has failed."""
_TOLERANCE = 1e-9
"""Relative. Sums over other numbers of ranks are rounded differently, in numbers of 53 bits."""


def _reference(frameworks: Path, root: Path, kind: str, steps: int) -> Rounds:
    with Rounds(frameworks, root / "alone", kind, steps, step_seconds=0.0) as alone:
        alone.run_alone()
        return alone


def _assert_each_step_once(rounds: Rounds, names: str, steps: int) -> None:
    """Assert that each rank ends a step once. One of them may lack the step of a loss, which another one has ended."""
    ended = [[line["step"] for line in rounds.recorded(name) if line["event"] == "end"] for name in names]
    assert all(each == sorted(set(each)) for each in ended)
    assert set().union(*ended) == set(range(steps))


def _change_in_every_way(rounds: Rounds) -> None:
    """Grow from 2 to 4, lose rank 0 and another one announced, then one without notice: 1 is left and finishes."""
    rounds.start("a", "b")
    rounds.until_ready()
    rounds.start("c", "d", joins=True)
    rounds.regroup("a", "b", "c", "d")
    rounds.until_step(rounds.step_of("a") + 3)
    rounds.regroup("b", "d")
    rounds.until_step(rounds.step_of("b") + 3)
    rounds.kill("d")
    rounds.form("b")
    rounds.finish("b")


@pytest.mark.brief
def test_parameters_are_bit_equal_after_every_kind_of_change(frameworks: Path, tmp_path: Path) -> None:
    """Each use of a sample subtracts 1 from its parameter, so that sums are exact for 1, 2 and 4 ranks."""
    with Rounds(frameworks, tmp_path / "elastic", "exact", 300) as rounds:
        _change_in_every_way(rounds)
    reference = _reference(frameworks, tmp_path, "exact", 300)
    assert rounds.parameters("b") == reference.parameters("alone")
    assert list(used([rounds.recorded(name) for name in "abcd"])) == list(used([reference.recorded("alone")]))


@pytest.mark.long
def test_a_network_with_adamw_equals_the_reference(frameworks: Path, tmp_path: Path) -> None:
    with Rounds(frameworks, tmp_path / "elastic", "replicated", 150) as rounds:
        _change_in_every_way(rounds)
    reference = _reference(frameworks, tmp_path, "replicated", 150).parameters("alone")
    for name, values in rounds.parameters("b").items():
        assert values == pytest.approx(reference[name], rel=_TOLERANCE)


@pytest.mark.long
def test_shards_follow_the_ranks_of_each_round(fsdp2: Path, tmp_path: Path) -> None:
    """One process is rank 1 of 2, then 1 of 4, and then 0 of 2: its parts are others each time."""
    with Rounds(fsdp2, tmp_path / "elastic", "sharded", 150) as rounds:
        rounds.start("a", "b")
        rounds.until_ready()
        rounds.start("c", "d", joins=True)
        rounds.regroup("a", "b", "c", "d")
        rounds.until_step(rounds.step_of("a") + 3)
        rounds.regroup("b", "d")
        rounds.finish("b", "d")
    reference = _reference(fsdp2, tmp_path, "sharded", 150)
    for name, values in rounds.parameters("b").items():
        assert values == pytest.approx(reference.parameters("alone")[name], rel=_TOLERANCE)
    assert list(used([rounds.recorded(name) for name in "abcd"])) == list(used([reference.recorded("alone")]))


@pytest.mark.long
def test_no_step_is_repeated_after_a_loss_without_notice(
    frameworks: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Of three ranks one is killed. Those that wait for a living one are freed when that one leaves the group."""
    with Rounds(frameworks, tmp_path / "elastic", "replicated", 120) as rounds:
        rounds.start("a", "b", "c")
        rounds.until_ready()
        rounds.until_step(10)
        rounds.kill("b")
        rounds.form("a", "c")
        rounds.finish("a", "c")
    _assert_each_step_once(rounds, "ac", 120)
    ended = [line for line in rounds.recorded("a") if line["event"] == "end"]
    pauses = [after["at"] - before["at"] for before, after in pairwise(ended)]
    record_property("pause in seconds", round(max(pauses), 2))


@pytest.mark.parametrize(
    ("what", "line"),
    [
        pytest.param("backward", "torch.zeros(2, 3) @", marks=pytest.mark.brief),
        pytest.param("save", 'torch.save(states["model"].state_dict()', marks=pytest.mark.long),
    ],
)
def test_an_error_of_the_script_is_raised_at_once_with_its_own_line(
    frameworks: Path, tmp_path: Path, what: str, line: str
) -> None:
    """Although it is a RuntimeError as those of collectives are. The other ranks lose this one, and go on.

    Torch's prefix for the rank is there once, after rounds in which the rank was another one.
    """
    with Rounds(frameworks, tmp_path / "elastic", "replicated", 400) as rounds:
        rounds.start("a", "b", "c")
        rounds.until_ready()
        for names in (("a", "c", "b"), ("b", "a", "c")):
            rounds.until_step(rounds.step_of("a") + 3)
            rounds.regroup(*names)
        seconds, output = rounds.break_off("b", what)
        rounds.form("a", "c")
        rounds.finish("a", "c")
    assert seconds < _LOST_SECONDS
    assert line in output
    assert "waiting for the next round" not in output
    traceback = [each for each in output.splitlines() if "RuntimeError" in each]
    assert traceback
    assert all(each.startswith("[rank0]: RuntimeError") for each in traceback)


@pytest.mark.long
def test_twenty_rounds_leave_descriptors_threads_and_memory_flat(
    frameworks: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with Rounds(frameworks, tmp_path / "elastic", "replicated", 100_000, step_seconds=0.02) as rounds:
        rounds.start("a", "b", "c")
        rounds.until_ready()
        seen = []
        for _ in range(22):
            rounds.until_step(rounds.step_of("a") + 3)
            seen.append(rounds.recorded("a")[-2:][0])
            rounds.regroup("a", "b", "c")
        ended = [line for line in rounds.recorded("a") if line["event"] == "end"]
    pauses = sorted(b["at"] - a["at"] for a, b in pairwise(ended))[-22:]
    record_property("pause in seconds, median and worst", (round(pauses[11], 3), round(pauses[-1], 3)))
    for name in ("descriptors", "threads"):
        assert len({line[name] for line in ended[-40:]} | {max(line[name] for line in ended[20:40])}) == 1, name
    grown = ended[-1]["resident"] - ended[30]["resident"]
    record_property("memory grown in KiB", grown // 1024)
    assert grown < 8 * 2**20


@pytest.mark.long
def test_a_frozen_rank_is_left_behind_after_the_time_limit_of_collectives(frameworks: Path, tmp_path: Path) -> None:
    with Rounds(frameworks, tmp_path / "elastic", "replicated", 200) as rounds:
        rounds.start("a", "b", "c")
        rounds.until_ready()
        rounds.until_step(5)
        rounds.send("c", signal.SIGSTOP)
        rounds.form("a", "b")
        rounds.finish("a", "b")
    _assert_each_step_once(rounds, "ab", 200)
