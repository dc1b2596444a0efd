"""FSDP2: all ranks write each checkpoint together, so they stop at one agreed step.

torchrun --nproc-per-node 4 fsdp.py DIRECTORY [STEPS [background]]

With `background`, those that nobody asks for are written while training goes on.
"""

import sys
from typing import Iterator

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import kubeai.elastic as kubeai
from kubeai.elastic.integrations.torch import ShardedCheckpoints


def batches_from(first: int, steps: int) -> Iterator[torch.Tensor]:
    """Yield this rank's batches from step `first` on. The same step has the same batch in every run."""
    for step in range(first, steps):
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        yield torch.randn(8, 16, generator=generator)


def main(directory: str, steps: int, *, background: bool) -> None:
    """Train."""
    dist.init_process_group("gloo")
    kubeai.init(collective=True)  # a save needs all ranks
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(), torch.nn.Linear(32, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = ShardedCheckpoints(directory, model, optimizer)
    first = checkpoints.load()
    every = None if background else 50
    for step, batch in kubeai.steps(batches_from(first, steps), checkpoints.save, first=first, every=every):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sys.stdout.write(f"rank {dist.get_rank()} step {step} loss {loss.item().hex()}\n")
        sys.stdout.flush()
        if background and (step + 1) % 50 == 0:
            checkpoints.save_in_background(step + 1)
    checkpoints.save(steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 1_000_000, background="background" in sys.argv[3:])
