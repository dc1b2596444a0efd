"""kubeai.torch: copies in files of a host outlive its processes, and those that start anew go on from the newest."""

import os
import signal
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tests.frameworks.frameworks_resuming import STEPS, assert_equal_to_a_checkpoint_of, kill, rounds_of, start_anew
from tests.frameworks.frameworks_rounds import Rounds

pytestmark = pytest.mark.timeout(600)
_CHECKOUT = Path(__file__).parents[2]
_EVERY = 4
_LOST = 14
_THIRD_COPY = 28
"""As in test_copies.py."""


def _losses(rounds: Rounds, *names: str) -> set[tuple[int, str]]:
    """Return the losses of these processes. A step that comes again with the same ones counts once."""
    return {each for name in names for each in rounds.losses(name)}


@pytest.mark.long
@pytest.mark.parametrize("names", ["acd", "abcd"], ids=["on three of four hosts", "on all hosts"])
def test_processes_that_start_anew_go_on_from_the_newest_copy_and_equal_a_checkpoint_in_every_bit(
    fsdp2: Path, tmp_path: Path, names: str
) -> None:
    """No checkpoint is written, and at most as many steps come again as there are between two copies, and one."""
    with rounds_of(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        rounds.start("a", "b", "c", "d")
        rounds.until_step(_LOST)
        kill(rounds, "a", "b", "c", "d")
        back, finished = start_anew(rounds, *names)
        assert not (rounds.root / "checkpoints").exists()
    assert finished - 2 * _EVERY <= back <= finished
    assert f"going on after step {back}, from the memory of hosts" in rounds.output("a")
    assert [name for name in names if list((rounds.root / f"host-{name}").iterdir())] == []
    assert_equal_to_a_checkpoint_of(back, rounds, fsdp2, tmp_path, *names)


@pytest.mark.long
def test_half_a_copy_is_never_used(fsdp2: Path, tmp_path: Path) -> None:
    """A rank is killed while it sends, and its host is gone: the one that keeps its copy has a whole older one."""
    with rounds_of(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        struck = rounds.root / f"strike-copies-{_THIRD_COPY + 4}-b"
        struck.write_text(str(int(signal.SIGKILL)), encoding="ascii")
        rounds.start("a", "b", "c", "d")
        rounds.until_dead("b")
        kill(rounds, "a", "c", "d")
        back, _ = start_anew(rounds, "a", "c", "d")
    assert back == _EVERY
    assert_equal_to_a_checkpoint_of(back, rounds, fsdp2, tmp_path, "a", "c", "d")


@pytest.mark.long
def test_processes_that_are_lost_in_process_and_then_all_killed_go_on_from_the_newest_copy(
    fsdp2: Path, tmp_path: Path
) -> None:
    """The steps that come again are those of the first time, with as many ranks."""
    names = "acd"
    with rounds_of(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        rounds.start("a", "b", "c", "d")
        rounds.until_step(_LOST)
        rounds.kill("b")
        rounds.until_lost(*names)
        rounds.form(*names)
        rounds.until_step(_LOST + _EVERY)
        kill(rounds, *names)
        before = {name: dict(rounds.losses(name)) for name in names}
        back, finished = start_anew(rounds, *names)
    assert finished - 2 * _EVERY <= back <= finished
    for name in names:
        again = {step: loss for step, loss in before[name].items() if step >= back}
        assert again.items() <= dict(rounds.losses(name)).items()


@pytest.mark.long
@pytest.mark.parametrize(("lost", "back"), [(15, 12), (22, 20)], ids=["of a copy", "of a checkpoint"])
def test_the_newer_one_of_a_copy_and_a_checkpoint_is_taken(fsdp2: Path, tmp_path: Path, lost: int, back: int) -> None:
    """A process that starts anew looks for the newest checkpoint itself."""
    with rounds_of(fsdp2, tmp_path, "both-12") as rounds:
        rounds.start("a", "b", "c", "d")
        (rounds.root / f"dies-in-step-{lost}-b").touch()
        rounds.until_dead("b")
        kill(rounds, "a", "c", "d")
        assert start_anew(rounds, "a", "c", "d")[0] == back
    assert_equal_to_a_checkpoint_of(back, rounds, fsdp2, tmp_path, "a", "c", "d")


@pytest.mark.long
def test_a_host_with_too_little_room_costs_the_copies_and_not_the_training(fsdp2: Path, tmp_path: Path) -> None:
    """It has room for the first copy, which is smaller than the others."""
    with rounds_of(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        (rounds.root / "has-no-room-b").touch()
        rounds.start("a", "b", "c")
        rounds.finish("a", "b", "c")
    ended = "no further copies of the state in this round: "
    assert [step for step, _ in rounds.losses("a")] == list(range(STEPS))
    assert rounds.output("b").count(f"{ended}OSError: [Errno 27] File too large") == 1
    for name in "ac":
        assert rounds.output(name).count(f"{ended}a rank cannot copy its part") == 1


@pytest.mark.long
def test_files_of_a_host_that_are_malformed_cost_a_line(fsdp2: Path, tmp_path: Path) -> None:
    """The hosts before and after it have all parts."""
    with rounds_of(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        rounds.start("a", "b", "c", "d")
        rounds.until_step(_LOST)
        kill(rounds, "a", "b", "c", "d")
        for path in (rounds.root / "host-b").glob("*/*.part"):
            os.truncate(path, path.stat().st_size // 2)
        back, finished = start_anew(rounds, "a", "b", "c", "d")
    assert finished - 2 * _EVERY <= back <= finished
    assert "a copy of the state is ignored: " in rounds.output("b")
    assert len(_losses(rounds, "b")) == STEPS


@pytest.mark.long
@pytest.mark.parametrize(
    ("agents", "processes"), [("ab", 1), ("a", 2)], ids=["two hosts", "one host with two processes"]
)
def test_torchrun_restarts_its_processes_and_they_go_on_from_the_newest_copy(
    fsdp2: Path, tmp_path: Path, agents: str, processes: int
) -> None:
    """With a rendezvous backend of torch: the agents have the same address, and so may change their ranks."""
    names = [*agents, *(f"{name}{local}" for name in agents for local in range(1, processes))]
    with rounds_of(fsdp2, tmp_path, f"kept-{_EVERY}") as rounds:
        (rounds.root / f"dies-in-step-{_LOST}-{names[1]}").touch()
        rounds.run_torchrun(agents, processes)
    steps = [step for step, _ in rounds.losses("a")]
    back = [after for before, after in pairwise(steps) if after != before + 1]
    assert len(back) == 1
    assert _LOST - 2 * _EVERY <= back[0] <= _LOST
    with rounds_of(fsdp2, tmp_path / "undisturbed", f"kept-{_EVERY}") as undisturbed:
        undisturbed.run_torchrun(agents, processes)
    assert [step for step, _ in undisturbed.losses("a")] == list(range(STEPS))
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
