"""What a process of a job does in a test whatever its framework: it records its losses, and is disturbed.

Processes of one machine play those of two: the upper half of the ranks is on the host `node2`.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.frameworks.frameworks_disagreement import disagree

_RUN = int(os.environ.get("KUBEAI_RUN", "0"))
_LOOK_SECONDS = 0.02


@contextmanager
def losses_recorded(rank: int) -> Iterator[Callable[[float], None]]:
    """Yield what appends a line for a loss of this rank. After it no step takes less time than a test asks."""
    directory = Path(os.environ["FRAMEWORKS_LOSSES"])
    # Nothing happens in a later run that had to be waited for.
    step_seconds = float(os.environ["FRAMEWORKS_STEP_SECONDS"]) if _RUN <= 1 else 0.0
    path = directory / f"run-{_RUN}-rank-{rank}.jsonl"
    with path.open("a", encoding="ascii", buffering=1) as lines:

        def record(loss: float) -> None:
            _stall(directory, rank)
            lines.write(json.dumps({"loss": loss.hex(), "at": time.time()}) + "\n")
            time.sleep(step_seconds)

        yield record


def disturb(rank: int, world_size: int) -> None:
    """Give this process its host, and take supervisor or agreement away from it if a test asks."""
    os.environ["KUBEAI_HOST"] = "node2" if rank * 2 >= world_size else "node1"
    if os.environ.get("FRAMEWORKS_CUT_OFF") == str(rank):
        os.environ["KUBEAI_DIR"] = os.devnull
    if "FRAMEWORKS_DISAGREE" in os.environ:
        disagree()


def _stall(directory: Path, rank: int) -> None:
    """Stand still as long as there is a file of this rank's name."""
    while (directory / f"stall-{rank}").exists():
        time.sleep(_LOOK_SECONDS)
