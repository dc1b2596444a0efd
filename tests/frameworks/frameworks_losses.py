"""Reads the losses that the processes of a job have recorded, and compares the losses of several runs."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

Curve = dict[int, list[str]]
"""By rank, the loss of each step as `float.hex` gives it: equal only if every bit is."""

_FILE = re.compile(r"run-(\d+)-rank-(\d+)\.jsonl")


def curves(directory: Path) -> list[Curve]:
    """The losses of each run that has trained, in the order of the runs."""
    found: dict[int, Curve] = defaultdict(dict)
    for path in directory.iterdir():
        if (named := _FILE.fullmatch(path.name)) is not None and (losses := [loss for loss, _ in _lines(path)]):
            found[int(named[1])][int(named[2])] = losses
    return [found[run] for run in sorted(found)]


def seconds_of(directory: Path, run: int, rank: int) -> list[float]:
    """When each loss was computed, in Unix seconds."""
    return [at for _, at in _lines(directory / f"run-{run}-rank-{rank}.jsonl")]


def numbers(losses: Sequence[str]) -> list[float]:
    """The losses that were recorded as `float.hex` gives them."""
    return [float.fromhex(loss) for loss in losses]


def steps_of(curve: Curve) -> int:
    """How many steps all ranks have begun."""
    return min(len(losses) for losses in curve.values())


def assert_goes_on_exactly(whole: Curve, runs: Sequence[Curve]) -> None:
    """Assert that the runs, one after the other, are the uninterrupted one: no step lost, repeated or different."""
    for rank, losses in whole.items():
        assert [loss for run in runs for loss in run[rank]] == losses, f"rank {rank}"


def steps_repeated(whole: Curve, first: Curve, second: Curve) -> int:
    """How many steps the second run trained that the first had trained before.

    Each run on its own has to be a part of the uninterrupted one: the first its beginning, the second its end.
    """
    repeated = set()
    for rank, losses in whole.items():
        assert losses[: len(first[rank])] == first[rank], f"rank {rank} of the first run"
        assert losses[len(losses) - len(second[rank]) :] == second[rank], f"rank {rank} of the second run"
        repeated.add(len(first[rank]) + len(second[rank]) - len(losses))
    assert len(repeated) == 1, f"ranks ended the first run at different steps: {repeated}"
    return repeated.pop()


def steps_trained_again(whole: Curve, first: Curve, second: Curve) -> int:
    """How many steps were repeated, where ranks were ended in the midst of a step."""
    ended = steps_of(first)
    return steps_repeated(whole, {rank: losses[:ended] for rank, losses in first.items()}, second)


def _lines(path: Path) -> list[tuple[str, float]]:
    # A process that was killed may have left the last line unfinished.
    whole = path.read_text(encoding="ascii").rpartition("\n")[0].splitlines() if path.exists() else []
    return [(line["loss"], line["at"]) for line in map(json.loads, whole)]
