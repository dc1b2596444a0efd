"""Ray Train: all workers stop at one agreed step, for which each reports its part of one checkpoint.

ray_train.py DIRECTORY [STEPS [WORKERS]]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator

import ray
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

import kubeai.elastic as kubeai
from kubeai.elastic.integrations.random_state import random_state, set_random_state


class WorkerTraining:
    """The model and its optimizer in one worker, and their checkpoints."""

    def __init__(self) -> None:
        context = ray.train.get_context()
        self.rank, self.workers = context.get_world_rank(), context.get_world_size()
        torch.manual_seed(self.rank)  # each worker has dropout of its own; DDP takes the parameters of rank 0
        self._model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(), torch.nn.Linear(32, 1))
        self._parallel = prepare_model(self._model)  # DDP; a single worker's model is not wrapped, so it is not saved
        self._optimizer = torch.optim.AdamW(self._model.parameters())

    def load(self) -> int:
        """Return the number of finished steps in the newest checkpoint that was reported, 0 without one."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return 0
        with checkpoint.as_directory() as directory:
            saved = torch.load(Path(directory, "training.pt"))
            self._model.load_state_dict(saved["model"])
            self._optimizer.load_state_dict(saved["optimizer"])
            own = self._random_file(directory)
            if own.exists():  # not if this run has more workers than the one that saved
                set_random_state(torch.load(own))
        return int(saved["step"])

    def save(self, step: int) -> None:
        """Report a checkpoint. Return once Ray has recorded it, in every worker."""
        with tempfile.TemporaryDirectory() as directory:
            torch.save(random_state(), self._random_file(directory))
            if self.rank == 0:
                state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict(), "step": step}
                torch.save(state, Path(directory, "training.pt"))
            ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(directory))
        # `report` returns before Ray has recorded the checkpoint, and a job whose workers have saved is ended.
        ray.train.get_all_reported_checkpoints(ray.train.CheckpointConsistencyMode.COMMITTED)

    def train(self, batch: torch.Tensor) -> float:
        """Train for one step and return the loss."""
        loss = self._parallel(batch).square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.item())

    def batches_from(self, first: int, steps: int) -> Iterator[torch.Tensor]:
        """Yield this worker's batches from step `first` on. The same step has the same batch in every run."""
        for step in range(first, steps):
            generator = torch.Generator().manual_seed(step * self.workers + self.rank)
            yield torch.randn(8, 16, generator=generator)

    def _random_file(self, directory: str) -> Path:
        return Path(directory, f"random-{self.rank}.pt")


def train_worker(config: dict[str, Any]) -> int | None:
    """Train in one worker. Return the exit code after a stop, None at the end."""
    kubeai.init(collective=True)  # a report needs all workers
    training = WorkerTraining()
    first = training.load()
    batches = training.batches_from(first, config["steps"])
    try:
        for step, batch in kubeai.steps(batches, training.save, first=first, every=100):
            loss = training.train(batch)
            print(f"rank {training.rank} step {step} loss {loss.hex()}")
    except SystemExit as stop:  # to Ray a worker that exits has failed, and with `max_failures` it begins again
        return int(stop.code or 0)
    training.save(config["steps"])
    return None


def main(directory: str, steps: int, workers: int) -> int | None:
    """Train on this machine. Return the exit code."""
    ray.init(num_cpus=workers, include_dashboard=False)
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"steps": steps},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        # The next run finds the checkpoints of this one by the same two names.
        run_config=ray.train.RunConfig(storage_path=str(Path(directory).absolute()), name="training"),
    )
    return trainer.fit().return_value


if __name__ == "__main__":
    sys.exit(
        main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 1_000_000, int(sys.argv[3]) if sys.argv[3:] else 2)
    )
