"""Measures a change of hosts with sharded state from memory to memory beside one through a checkpoint.

    make handover-costs ARGS='MEGABYTES DIRECTORY'

The second of four processes leaves, with FSDP2 and AdamW, and another one joins the other three. DIRECTORY is for the
checkpoints; by default in memory, where they are fastest.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.frameworks.frameworks_installation import installed
from tests.frameworks.frameworks_rounds import Rounds

_MEGABYTES, _DIRECTORY = 256, "/dev/shm"  # noqa: S108 - a directory of its own is made in it
_LEAVE, _JOIN, _STEPS = 3, 6, 8
SCRIPT = str(Path(__file__).parent / "clients" / "handover.py")
_TIMES = 3


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """Says what one change cost.

    Attributes:
        moving: Seconds for which state moved.
        pause: Seconds in which no step was made.
        sent: Bytes that all ranks sent.
        extra: Bytes that a rank which stays had at most more than before.
    """

    moving: float
    pause: float
    sent: int
    extra: int


def _costs(rounds: Rounds) -> tuple[ChangeCost, ChangeCost]:
    """Return what the leave and the join cost. State moves until the slowest rank is done; rank 0 has the pause."""
    return tuple(_cost(rounds, first, step) for first, step in ((0, _LEAVE), (_LEAVE, _JOIN)))  # type: ignore[return-value]


def _cost(rounds: Rounds, first: int, step: int) -> ChangeCost:
    moving, sent, extra = [0.0], 0, [0]
    for name in "abcde":
        seconds, own = 0.0, -1
        for line in rounds.recorded(name):
            own = line["step"] if line["event"] == "end" else own
            if first <= own < step:
                seconds += line["seconds"] if line["event"] == "moved" else 0.0
                sent += line["bytes"] if line["event"] == "sent" else 0
                extra += [line["bytes"]] if line["event"] == "peak" else []
        moving.append(seconds)
    at = {(line["event"], line["step"]): line["at"] for line in rounds.recorded("a") if "step" in line}
    return ChangeCost(max(moving), at["begin", step] - at["end", step - 1], sent, max(extra))


@contextmanager
def directory(parent: str) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir=parent, prefix="handover-"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def _measured(home: Path, root: Path, kind: str) -> tuple[ChangeCost, ChangeCost]:
    with Rounds(home, root / kind, kind, _STEPS, script=SCRIPT) as rounds:
        rounds.four_three_four(_LEAVE, _JOIN)
    return _costs(rounds)


def main(megabytes: int, parent: str) -> None:
    """Print the best of some runs of each way, and their ratios."""
    home, runs = installed(), dict[str, list[tuple[ChangeCost, ChangeCost]]](memory=[], file=[])
    for _ in range(_TIMES):
        for way, found in runs.items():
            with directory(parent) as root:
                found.append(_measured(home, root, f"{way}-{megabytes}"))
    peaks = {}
    for way in runs:
        with directory(parent) as root:
            peaks[way] = [each.extra for each in _measured(home, root, f"{way}-{megabytes}-peak")]
    sys.stdout.write(f"{megabytes} MB of parameters and means, checkpoints in {parent}, best of {_TIMES}\n")
    sys.stdout.write("change  way      moving state  pause    sent       more memory, in new parts\n")
    for index, (change, ranks) in enumerate((("leave", 3), ("join", 4))):
        best = {
            way: (min(each[index].moving for each in found), min(each[index].pause for each in found))
            for way, found in runs.items()
        }
        for way, (moving, pause) in best.items():
            sent, extra = runs[way][0][index].sent, peaks[way][index]
            sys.stdout.write(f"{change:<7} {way:<8} {moving:>9.3f} s {pause:>8.3f} s {sent / 1e6:>6.1f} MB ")
            sys.stdout.write(f"{extra / 1e6:>6.1f} MB {extra * ranks / 1e6 / megabytes:>6.2f}\n")
        ratios = [of / beside for of, beside in zip(best["memory"], best["file"], strict=True)]
        sys.stdout.write(f"{change:<7} ratio    {ratios[0]:>9.2f}   {ratios[1]:>8.2f}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else _MEGABYTES, sys.argv[2] if sys.argv[2:] else _DIRECTORY)
