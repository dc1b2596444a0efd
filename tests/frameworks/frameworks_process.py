"""Runs a training script as one process of a job, records its losses, and disturbs it as a test asks.

    torchrun … frameworks_process.py SCRIPT ARGUMENT …

The script is unchanged: whatever framework it uses, `torch.Tensor.backward` is called with the loss once a step.
"""

import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.frameworks.frameworks_rank import disturb, losses_recorded
from tests.testkit import torch_exit


@contextmanager
def torch_losses_recorded(rank: int) -> Iterator[None]:
    """Record the losses of this process whose gradients are computed."""
    backward = torch.Tensor.backward
    with losses_recorded(rank) as record:

        def recorded(loss: Any, *args: Any, **kwargs: Any) -> Any:
            record(loss.item())
            return backward(loss, *args, **kwargs)

        torch.Tensor.backward = recorded
        yield


def _main() -> None:
    script, *arguments = sys.argv[1:]
    rank = int(os.environ.get("RANK", "0"))
    disturb(rank, int(os.environ.get("WORLD_SIZE", "1")))
    sys.argv = [script, *arguments]
    with torch_losses_recorded(rank):
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    torch_exit.run(_main)
