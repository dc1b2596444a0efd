"""Distributed data-parallel training in which rank 0 saves alone, as scripts for the original SDK do.

    torchrun --nproc-per-node 2 distributed.py CHECKPOINT

With PyTorch it all-reduces one number per step over gloo. Without PyTorch it only shows where to call the SDK.
"""

import os
import sys
import time
from pathlib import Path

import kubeai.elastic as kubeai

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = dist = None


def join() -> int:
    """Join the process group, if there is one, and return this process's rank."""
    if dist is not None and "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo")
        return int(dist.get_rank())
    return int(os.environ.get("RANK", "0"))


def train_one_step() -> None:
    """Exchange gradients. The flag is not exchanged: rank 0 is told first, the others when the job is suspended."""
    if dist is not None and dist.is_initialized():
        dist.all_reduce(torch.ones(1))
    time.sleep(0.01)  # the rest of the step


def save(checkpoint: Path, rank: int, step: int) -> None:
    """Save in rank 0. Every rank may call it."""
    if rank == 0:
        checkpoint.write_text(str(step))
        kubeai.checkpoint_saved(step)


def main(checkpoint: Path) -> None:
    """Train."""
    rank = join()
    kubeai.init()  # after the framework's own init, which provides the rank
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print("rank", rank, "from step", step, flush=True)
    while True:
        if not kubeai.check_alive():  # in every rank, before every step
            save(checkpoint, rank, step)
            sys.exit(-1)
        if kubeai.should_checkpoint():
            save(checkpoint, rank, step)
        train_one_step()
        step += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
