"""Runs a script of Ray Train, records the losses of its workers, and disturbs them as a test asks.

    frameworks_ray_driver.py SCRIPT ARGUMENT …

The script is unchanged: its TorchTrainer gets a training function that disturbs the worker before it trains.
"""

import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

import ray.train
import ray.train.torch
from ray.train.torch import TorchTrainer

from tests.frameworks.frameworks_process import torch_losses_recorded
from tests.frameworks.frameworks_rank import disturb

WorkerFunction = Callable[[dict[str, Any]], Any]


def _disturbed(train_worker: WorkerFunction) -> WorkerFunction:
    def train(config: dict[str, Any]) -> Any:
        context = ray.train.get_context()
        disturb(context.get_world_rank(), context.get_world_size())
        if "FRAMEWORKS_UNRECORDED" in os.environ:
            ray.train.get_all_reported_checkpoints = lambda _: None
        with torch_losses_recorded(context.get_world_rank()):
            return train_worker(config)

    return train


def _trainer(train_worker: WorkerFunction, **settings: Any) -> TorchTrainer:
    failures = int(os.environ.get("FRAMEWORKS_MAX_FAILURES", "0"))
    settings["run_config"].failure_config = ray.train.FailureConfig(max_failures=failures)
    return TorchTrainer(_disturbed(train_worker), **settings)


if __name__ == "__main__":
    ray.train.torch.TorchTrainer = _trainer
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
