"""Compares the states that ranks have recorded before each step with those of a run that nothing disturbs."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.frameworks.frameworks_rounds import Rounds


def assert_exact_states(home: Path, root: Path, rounds: Rounds) -> None:
    """Assert that the state before each step was that of an undisturbed run.

    What is divided is compared as the sum over all ranks, and what is whole in each rank in each one.

    Args:
        home: The environment that has torch.
        root: Where the undisturbed run has its files.
        rounds: A job whose ranks have recorded their states: of one of the kinds `exact`.
    """
    names = [path.name[len("steps-") : -len(".jsonl")] for path in rounds.root.glob("steps-*.jsonl")]
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for line in (line for name in names for line in rounds.recorded(name) if line["event"] == "state"):
        found[line["round"], line["step"]].append(line)
    steps = max(step for _, step in found) + 1
    with Rounds(home, root / "alone", rounds.kind.partition("-")[0], steps, 0, rounds.script) as alone:
        expected = {line["step"]: line for line in alone.run_alone() if line["event"] == "state"}
    for (_, step), lines in found.items():
        if len(lines) == lines[0]["world"]:  # the last one was cut off
            assert sum(line["checksum"] for line in lines) % 2**64 == expected[step]["checksum"], step
            assert all(line["whole"] == expected[step]["whole"] for line in lines), step
            assert all(set(line["rest"]) == {step} for line in lines), step
