"""DDP that goes on in process when hosts leave or join: no process restarts, and no step is repeated.

torchrun --rdzv-backend=kubeai --rdzv-id=job --nnodes=1:4 in_process.py CHECKPOINT [STEPS]
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import kubeai.elastic as kubeai
from kubeai.torch.training import Batch, Replicated, train


class Checkpoint:
    """Model and optimizer in one file, which rank 0 writes."""

    def __init__(self, path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._path = path
        self._model = model
        self._optimizer = optimizer

    def load(self) -> int:
        """Return the number of finished steps in the checkpoint, 0 without one."""
        if not self._path.exists():
            return 0
        saved = torch.load(self._path)
        self._model.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optimizer"])
        return int(saved["step"])

    def save(self, step: int) -> None:
        """Write to a draft and rename it, so that a kill leaves the old checkpoint."""
        if dist.get_rank() != 0:
            return
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict(), "step": step}
        draft = self._path.with_suffix(".draft")
        torch.save(state, draft)
        draft.replace(self._path)


def main(path: Path, steps: int) -> None:
    """Train."""
    kubeai.init()
    torch.manual_seed(0)
    data = torch.randn(1000, 16)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint = Checkpoint(path, model, optimizer)

    def backward(module: Any, batch: Batch) -> None:
        loss = module(data[list(batch.indices)]).square().mean()
        (loss * batch.weight).backward()
        sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} step {batch.step} loss {loss.item()}\n")
        sys.stdout.flush()

    state = Replicated({"model": model, "optimizer": optimizer}, checkpoint.save, checkpoint.load)
    train(state, backward, samples=len(data), global_batch=32, steps=steps, every=100, backend="gloo")
    checkpoint.save(steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
