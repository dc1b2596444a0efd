"""Trains until a file of this name exists, and writes beside it that it trains. A test runs this in each worker."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.testkit import torch_exit

_STEP_SECONDS = 0.05


def _main() -> None:
    dist.init_process_group("gloo")
    end, is_over = Path(sys.argv[1]), torch.zeros(1)
    dist.all_reduce(is_over)
    end.with_name(f"trains-{dist.get_rank()}").touch()
    while not is_over.item():
        time.sleep(_STEP_SECONDS)
        is_over.fill_(float(end.exists()))
        dist.all_reduce(is_over)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_exit.run(_main)
