"""A process that saves and loads sharded checkpoints by itself, and prints its results as JSON for a test.

frameworks_checkpoints.py DIRECTORY
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from kubeai.elastic.integrations.torch import ShardedCheckpoints


class CheckpointedTraining:
    def __init__(self, directory: Path) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        others = {"scheduler": self.scheduler}
        self.checkpoints = ShardedCheckpoints(directory, self.model, self.optimizer, others=others)

    def step(self) -> None:
        self.model(torch.randn(2, 4)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def state(self) -> list[float]:
        """Return something of each part of the state. It draws a random number."""
        return [*self.model.weight.flatten().tolist(), self.scheduler.last_epoch, torch.rand(1).item()]


def refusal(training: CheckpointedTraining) -> str:
    try:
        training.checkpoints.save(1)
    except RuntimeError as error:
        return str(error)
    return ""


def main(directory: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    training, again = CheckpointedTraining(directory), CheckpointedTraining(directory)
    first = training.checkpoints.load()
    for step in (1, 2, 2, 9):
        training.step()
        training.checkpoints.save(step)
    saved = training.state()
    facts = {
        "first": first,
        "saved": saved,
        "loaded_step": again.checkpoints.load(),
        "loaded": again.state(),
        "names": sorted(path.name for path in directory.iterdir()),
        "refusal": refusal(CheckpointedTraining(Path("/dev/null/checkpoints"))),
    }
    sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
