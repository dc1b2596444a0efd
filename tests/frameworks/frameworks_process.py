"""Runs a training script as one process of a job, records its losses, and disturbs it as a test asks.

    torchrun … frameworks_process.py SCRIPT ARGUMENT …

The script is unchanged: whatever framework it uses, `torch.Tensor.backward` is called with the loss once a step.
Processes of one machine play those of two: the upper half of the ranks is on the host `node2`.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.frameworks.frameworks_disagreement import disagree
from tests.testkit import torch_exit

_RUN = int(os.environ.get("KUBEAI_RUN", "0"))
_LOOK_SECONDS = 0.02


@contextmanager
def losses_recorded(rank: int) -> Iterator[None]:
    """Append a line for each loss of this process, and have no step take less time than a test asks."""
    directory = Path(os.environ["FRAMEWORKS_LOSSES"])
    # Nothing happens in a later run that had to be waited for.
    step_seconds = float(os.environ["FRAMEWORKS_STEP_SECONDS"]) if _RUN <= 1 else 0.0
    backward = torch.Tensor.backward
    path = directory / f"run-{_RUN}-rank-{rank}.jsonl"
    with path.open("a", encoding="ascii", buffering=1) as lines:

        def recorded(loss: Any, *args: Any, **kwargs: Any) -> Any:
            _stall(directory, rank)
            lines.write(json.dumps({"loss": loss.item().hex(), "at": time.time()}) + "\n")
            time.sleep(step_seconds)
            return backward(loss, *args, **kwargs)

        torch.Tensor.backward = recorded
        yield


def _stall(directory: Path, rank: int) -> None:
    """Stand still as long as there is a file of this rank's name."""
    while (directory / f"stall-{rank}").exists():
        time.sleep(_LOOK_SECONDS)


def disturb(rank: int, world_size: int) -> None:
    """Give this process its host, and take supervisor or agreement away from it if a test asks."""
    os.environ["KUBEAI_HOST"] = "node2" if rank * 2 >= world_size else "node1"
    if os.environ.get("FRAMEWORKS_CUT_OFF") == str(rank):
        os.environ["KUBEAI_DIR"] = os.devnull
    if "FRAMEWORKS_DISAGREE" in os.environ:
        disagree()


def _main() -> None:
    script, *arguments = sys.argv[1:]
    rank = int(os.environ.get("RANK", "0"))
    disturb(rank, int(os.environ.get("WORLD_SIZE", "1")))
    sys.argv = [script, *arguments]
    with losses_recorded(rank):
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    torch_exit.run(_main)
