"""A PyTorch loop that goes on in process where its rendezvous lets it, and by restarts elsewhere.

torchrun train.py CHECKPOINT [STEPS]
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import kubeai.elastic as kubeai
from kubeai.torch.training import Batch, Replicated, train

_STEP_SECONDS = 0.05


class Regression:
    """The model, its optimizer and their checkpoint, which rank 0 writes."""

    def __init__(self, path: Path) -> None:
        torch.manual_seed(0)
        self._path = path
        self._data = torch.randn(1000, 16)
        self.model = torch.nn.Linear(16, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def load(self) -> int:
        """Return the number of finished steps in the checkpoint, 0 without one."""
        step = 0
        if self._path.exists():
            saved = torch.load(self._path)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            step = int(saved["step"])
        print(f"starts at step {step}", flush=True)
        return step

    def save(self, step: int) -> None:
        """Write to a draft and rename it, so that a kill leaves the old checkpoint."""
        if dist.get_rank() != 0:
            return
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}
        draft = self._path.with_suffix(".draft")
        torch.save(state, draft)
        draft.replace(self._path)
        print(f"saved after step {step}", flush=True)

    def backward(self, module: Any, batch: Batch) -> None:
        """Compute the gradients of this rank's part of a step."""
        loss = module(self._data[list(batch.indices)]).square().mean()
        (loss * batch.weight).backward()
        time.sleep(_STEP_SECONDS)  # Such a step takes no time: this one leaves people some to look.
        if dist.get_rank() == 0 and batch.step % 20 == 0:
            print(f"{dist.get_world_size()} ranks, step {batch.step}, loss {loss.item():.4f}", flush=True)


def main(path: Path, steps: int) -> None:
    """Train."""
    kubeai.init()
    training = Regression(path)
    state = Replicated({"model": training.model, "optimizer": training.optimizer}, training.save, training.load)
    train(state, training.backward, samples=1000, global_batch=32, steps=steps, every=1000, backend="gloo")
    training.save(steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
