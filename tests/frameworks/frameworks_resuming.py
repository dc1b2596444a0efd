"""Compares processes that start anew, and go on from some memory, with those that go on from a checkpoint."""

from pathlib import Path

from tests.frameworks.frameworks_rounds import Rounds

STEPS = 30


def rounds_of(home: Path, root: Path, kind: str) -> Rounds:
    return Rounds(home, root / kind, kind, STEPS, script="frameworks_handover.py")


def kill(rounds: Rounds, *names: str) -> None:
    for name in names:
        rounds.kill(name)


def start_anew(rounds: Rounds, *names: str) -> tuple[int, int]:
    """Start processes of these hosts, and let them train to the end.

    Returns after how many steps they go on, and how many the first one had finished before.
    """
    before = len(rounds.losses(names[0]))
    rounds.start(*names)
    rounds.finish(*names)
    ended = rounds.losses(names[0])
    return ended[before][0], ended[before - 1][0] + 1


def assert_equal_to_a_checkpoint_of(step: int, rounds: Rounds, home: Path, root: Path, *names: str) -> None:
    """Assert that from then on all is as if the processes had begun with a checkpoint of that step."""
    with rounds_of(home, root, f"saved-{step}") as saved:
        saved.start("a", "b", "c", "d")
        saved.until_step(step)
        kill(saved, "a", "b", "c", "d")
        assert start_anew(saved, *names)[0] == step
    assert _since(rounds, step, *names) == _since(saved, step, *names)
    assert rounds.parameters("a") == saved.parameters("a")


def _since(rounds: Rounds, step: int, *names: str) -> list[list[tuple[int, str]]]:
    """Return the losses from the last time on that each rank began this step."""
    found = []
    for name in names:
        ended = rounds.losses(name)
        begun = max(index for index, (each, _) in enumerate(ended) if each == step)
        found.append(ended[begun:])
    return found
