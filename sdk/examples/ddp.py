"""DDP: rank 0 alone writes a checkpoint, because every rank has the same parameters.

torchrun --nproc-per-node 4 ddp.py CHECKPOINT [STEPS]
"""

import sys
from pathlib import Path
from typing import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import kubeai.elastic as kubeai


class Training:
    """The model, its optimizer and their checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        torch.manual_seed(0)
        self._checkpoint = checkpoint
        # Otherwise DDP adds gradients up in another order after the first step of a run, and a run that resumes would
        # differ from one that was not stopped in the last bits.
        self._model = DistributedDataParallel(torch.nn.Linear(16, 1), find_unused_parameters=True)
        self._optimizer = torch.optim.AdamW(self._model.parameters())

    def load(self) -> int:
        """Return the number of finished steps in the checkpoint, 0 without one."""
        if not self._checkpoint.exists():
            return 0
        saved = torch.load(self._checkpoint)
        self._model.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optimizer"])
        return int(saved["step"])

    def save(self, step: int) -> None:
        """Write to a draft and rename it, so that a kill leaves the old checkpoint."""
        if dist.get_rank() != 0:
            return
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict(), "step": step}
        draft = self._checkpoint.with_suffix(".draft")
        torch.save(state, draft)
        draft.replace(self._checkpoint)

    def train(self, batch: torch.Tensor) -> float:
        """Train for one step and return the loss."""
        loss = self._model(batch).square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.item()


def batches_from(first: int, steps: int) -> Iterator[torch.Tensor]:
    """Yield this rank's batches from step `first` on. The same step has the same batch in every run."""
    for step in range(first, steps):
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        yield torch.randn(8, 16, generator=generator)


def main(checkpoint: Path, steps: int) -> None:
    """Train."""
    dist.init_process_group("gloo")
    kubeai.init()  # after the process group, which provides the rank
    training = Training(checkpoint)
    first = training.load()
    for step, batch in kubeai.steps(batches_from(first, steps), training.save, first=first):
        loss = training.train(batch)
        sys.stdout.write(f"rank {dist.get_rank()} step {step} loss {loss.hex()}\n")
        sys.stdout.flush()
    training.save(steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
