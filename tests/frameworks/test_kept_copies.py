"""kubeai.torch: copies in files of a host outlive its processes, and those that start anew go on from the newest."""

import os
import signal
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tests.frameworks.frameworks_rounds import Rounds

pytestmark = pytest.mark.timeout(600)
_CHECKOUT = Path(__file__).parents[2]
_STEPS, _EVERY = 30, 4
_LOST = 14
_THIRD_COPY = 28
"""As in test_copies.py."""


def _rounds(home: Path, root: Path, kind: str) -> Rounds:
    return Rounds(home, root / kind, kind, _STEPS, script="frameworks_handover.py")


def _losses(rounds: Rounds, *names: str) -> set[tuple[int, str]]:
    """Return the losses of these processes. A step that comes again with the same ones counts once."""
    return {each for name in names for each in rounds.losses(name)}


def _kill(rounds: Rounds, *names: str) -> None:
    for name in names:
        rounds.kill(name)


def _start_anew(rounds: Rounds, *names: str) -> tuple[int, int]:
    """Start processes of these hosts, and let them train to the end.

    Returns after how many steps they go on, and how many the first one had finished before.
    """
    before = len(rounds.losses(names[0]))
    rounds.start(*names)
    rounds.finish(*names)
    ended = rounds.losses(names[0])
    return ended[before][0], ended[before - 1][0] + 1


def _since(rounds: Rounds, step: int, *names: str) -> list[list[tuple[int, str]]]:
    """Return the losses from the last time on that each rank began this step."""
    found = []
    for name in names:
        ended = rounds.losses(name)
        begun = max(index for index, (each, _) in enumerate(ended) if each == step)
        found.append(ended[begun:])
    return found


def _assert_equal_to_a_checkpoint_of(step: int, rounds: Rounds, home: Path, root: Path, *names: str) -> None:
    """Assert that from then on all is as if the processes had begun with a checkpoint of that step."""
    with _rounds(home, root, f"saved-{step}") as saved:
        saved.start("a", "b", "c", "d")
        saved.until_step(step)
        _kill(saved, "a", "b", "c", "d")
        assert _start_anew(saved, *names)[0] == step
    assert _since(rounds, step, *names) == _since(saved, step, *names)
    assert rounds.parameters("a") == saved.parameters("a")


@pytest.mark.parametrize(
    "names",
    [
        pytest.param("acd", marks=pytest.mark.brief, id="on three of four hosts"),
        pytest.param("abcd", marks=pytest.mark.long, id="on all hosts"),
    ],
)
def test_processes_that_start_anew_go_on_from_the_newest_copy_and_equal_a_checkpoint_in_every_bit(
    fsdp2: Path, tmp_path: Path, names: str
) -> None:
    """No checkpoint is written, and at most as many steps come again as there are between two copies, and one."""
    with _rounds(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        rounds.start("a", "b", "c", "d")
        rounds.until_step(_LOST)
        _kill(rounds, "a", "b", "c", "d")
        back, finished = _start_anew(rounds, *names)
        assert not (rounds.root / "checkpoints").exists()
    assert finished - 2 * _EVERY <= back <= finished
    assert f"going on after step {back}, from the memory of hosts" in rounds.output("a")
    assert [name for name in names if list((rounds.root / f"host-{name}").iterdir())] == []
    _assert_equal_to_a_checkpoint_of(back, rounds, fsdp2, tmp_path, *names)


@pytest.mark.long
def test_half_a_copy_is_never_used(fsdp2: Path, tmp_path: Path) -> None:
    """A rank is killed while it sends, and its host is gone: the one that keeps its copy has a whole older one."""
    with _rounds(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        struck = rounds.root / f"strike-copies-{_THIRD_COPY + 4}-b"
        struck.write_text(str(int(signal.SIGKILL)), encoding="ascii")
        rounds.start("a", "b", "c", "d")
        rounds.until_dead("b")
        _kill(rounds, "a", "c", "d")
        back, _ = _start_anew(rounds, "a", "c", "d")
    assert back == _EVERY
    _assert_equal_to_a_checkpoint_of(back, rounds, fsdp2, tmp_path, "a", "c", "d")


@pytest.mark.long
def test_processes_that_are_lost_in_process_and_then_all_killed_go_on_from_the_newest_copy(
    fsdp2: Path, tmp_path: Path
) -> None:
    """The steps that come again are those of the first time, with as many ranks."""
    names = "acd"
    with _rounds(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        rounds.start("a", "b", "c", "d")
        rounds.until_step(_LOST)
        rounds.kill("b")
        rounds.until_lost(*names)
        rounds.form(*names)
        rounds.until_step(_LOST + _EVERY)
        _kill(rounds, *names)
        before = {name: dict(rounds.losses(name)) for name in names}
        back, finished = _start_anew(rounds, *names)
    assert finished - 2 * _EVERY <= back <= finished
    for name in names:
        again = {step: loss for step, loss in before[name].items() if step >= back}
        assert again.items() <= dict(rounds.losses(name)).items()


@pytest.mark.long
@pytest.mark.parametrize(("lost", "back"), [(15, 12), (22, 20)], ids=["of a copy", "of a checkpoint"])
def test_the_newer_one_of_a_copy_and_a_checkpoint_is_taken(fsdp2: Path, tmp_path: Path, lost: int, back: int) -> None:
    """A process that starts anew looks for the newest checkpoint itself."""
    with _rounds(fsdp2, tmp_path, "both-12") as rounds:
        rounds.start("a", "b", "c", "d")
        (rounds.root / f"dies-in-step-{lost}-b").touch()
        rounds.until_dead("b")
        _kill(rounds, "a", "c", "d")
        assert _start_anew(rounds, "a", "c", "d")[0] == back
    _assert_equal_to_a_checkpoint_of(back, rounds, fsdp2, tmp_path, "a", "c", "d")


@pytest.mark.long
def test_a_host_with_too_little_room_costs_the_copies_and_not_the_training(fsdp2: Path, tmp_path: Path) -> None:
    """It has room for the first copy, which is smaller than the others."""
    with _rounds(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        (rounds.root / "has-no-room-b").touch()
        rounds.start("a", "b", "c")
        rounds.finish("a", "b", "c")
    ended = "no further copies of the state in this round: "
    assert [step for step, _ in rounds.losses("a")] == list(range(_STEPS))
    assert rounds.output("b").count(f"{ended}OSError: [Errno 27] File too large") == 1
    for name in "ac":
        assert rounds.output(name).count(f"{ended}a rank cannot copy its part") == 1


@pytest.mark.long
def test_files_of_a_host_that_are_malformed_cost_a_line(fsdp2: Path, tmp_path: Path) -> None:
    """The hosts before and after it have all parts."""
    with _rounds(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        rounds.start("a", "b", "c", "d")
        rounds.until_step(_LOST)
        _kill(rounds, "a", "b", "c", "d")
        for path in (rounds.root / "host-b").glob("*/*.part"):
            os.truncate(path, path.stat().st_size // 2)
        back, finished = _start_anew(rounds, "a", "b", "c", "d")
    assert finished - 2 * _EVERY <= back <= finished
    assert "a copy of the state is ignored: " in rounds.output("b")
    assert len(_losses(rounds, "b")) == _STEPS


@pytest.mark.long
@pytest.mark.parametrize(
    ("agents", "processes"), [("ab", 1), ("a", 2)], ids=["two hosts", "one host with two processes"]
)
def test_torchrun_restarts_its_processes_and_they_go_on_from_the_newest_copy(
    fsdp2: Path, tmp_path: Path, agents: str, processes: int
) -> None:
    """With a rendezvous backend of torch: the agents have the same address, and so may change their ranks."""
    names = [*agents, *(f"{name}{local}" for name in agents for local in range(1, processes))]
    with _rounds(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        (rounds.root / f"dies-in-step-{_LOST}-{names[1]}").touch()
        rounds.run_torchrun(agents, processes)
    steps = [step for step, _ in rounds.losses("a")]
    back = [after for before, after in pairwise(steps) if after != before + 1]
    assert len(back) == 1
    assert _LOST - 2 * _EVERY <= back[0] <= _LOST
    with _rounds(fsdp2, tmp_path / "undisturbed", f"kept-{_EVERY}") as undisturbed:
        undisturbed.run_torchrun(agents, processes)
    assert [step for step, _ in undisturbed.losses("a")] == list(range(_STEPS))
    assert _losses(rounds, *names) == _losses(undisturbed, *names)
    assert rounds.parameters("a") == undisturbed.parameters("a")


@pytest.mark.long
def test_training_goes_on_beside_the_files_that_it_has_begun_with(fsdp2: Path) -> None:
    """The next step leaves the parts alone that processes will find which start later."""
    script = Path(__file__).with_name("frameworks_kept.py")
    variables = {**os.environ, "PYTHONPATH": str(_CHECKOUT / "sdk"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [fsdp2 / "bin" / "python", script], env=variables, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
