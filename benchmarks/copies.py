"""Measures what copies of a sharded state on peers cost, and a loss without notice with them and with checkpoints.

    make copies-costs ARGS='MEGABYTES STEP_SECONDS DIRECTORY'

Four processes with FSDP2 and AdamW have a copy, or a checkpoint, each ten steps. The second one kills itself.
DIRECTORY is for the checkpoints; by default in memory, where they are fastest.
"""

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.handover import SCRIPT, directory
from tests.frameworks.frameworks_installation import installed
from tests.frameworks.frameworks_rounds import Rounds

_MEGABYTES, _STEP_SECONDS, _DIRECTORY = 256, 0.4, "/dev/shm"  # noqa: S108 - a directory of its own is made in it
_EVERY, _LOST, _STEPS = 10, 35, 45
_TIMES = 3
_WAYS = "copies", "saved", "memory"
"""The last one has neither copies nor checkpoints, and is not disturbed."""


@dataclass(frozen=True, slots=True)
class LossCost:
    """Says what one run cost.

    Attributes:
        step: The median time from step to step, in seconds.
        held: For how long each ten steps are held up for a copy or a checkpoint, in seconds.
        pause: From the last step before the loss to the next one that begins, in seconds; 0 without a loss.
        again: How many finished steps come again.
    """

    step: float
    held: float
    pause: float
    again: int


def _measured(home: Path, root: Path, way: str, megabytes: int, step_seconds: float) -> LossCost:
    kind = f"{way}-{megabytes}"
    with Rounds(home, root / way, kind, _STEPS, step_seconds=step_seconds, script=SCRIPT) as rounds:
        rounds.start("a", "b", "c", "d")
        if way != "memory":
            (rounds.root / f"dies-in-step-{_LOST}-b").touch()
            rounds.until_dead("b")
            rounds.until_lost("a", "c", "d")
            rounds.form("a", "c", "d")
        rounds.finish("a", "c", "d")
    lines = rounds.recorded("a")
    begun = [line for line in lines if line["event"] == "begin"]
    lost = next(at for at, line in enumerate(begun) if line["step"] == _LOST)
    end = next(line["at"] for line in lines if line["event"] == "end" and line["step"] == _LOST - 1)
    held = sum(line["seconds"] for line in lines if line["at"] < end and line.get("what") in ("take", "save"))
    step = median(after["at"] - before["at"] for before, after in pairwise(begun[:lost]))
    if way == "memory":
        return LossCost(step, 0.0, 0.0, 0)
    return LossCost(step, held * _EVERY / _LOST, begun[lost + 1]["at"] - end, _LOST - begun[lost + 1]["step"])


def main(megabytes: int, step_seconds: float, parent: str) -> None:
    """Print the medians of some runs of each way, one way after the other."""
    home, runs = installed(), dict[str, list[LossCost]]((way, []) for way in _WAYS)
    for _ in range(_TIMES):
        for way, found in runs.items():
            with directory(parent) as root:
                found.append(_measured(home, root, way, megabytes, step_seconds))
    sys.stdout.write(f"{megabytes} MB of parameters and means, checkpoints in {parent}, median of {_TIMES}\n")
    sys.stdout.write("way      step      held each ten steps       pause after a loss  steps again\n")
    for way, found in runs.items():
        step, held, pause = (median(getattr(each, name) for each in found) for name in ("step", "held", "pause"))
        share = held / (_EVERY * step)
        again = sorted({each.again for each in found})
        sys.stdout.write(f"{way:<8} {step:.3f} s {held:>9.3f} s ({100 * share:.2f} %) {pause:>15.2f} s {again!s:>14}\n")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        int(arguments[0]) if arguments else _MEGABYTES,
        float(arguments[1]) if arguments[1:] else _STEP_SECONDS,
        arguments[2] if arguments[2:] else _DIRECTORY,
    )
