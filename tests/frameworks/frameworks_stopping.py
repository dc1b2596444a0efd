"""Train with FSDP2, and keep the state in memory at a stop: … frameworks_stopping.py DIRECTORY STEPS."""

import sys

import torch
import torch.distributed as dist
from kubeai.elastic import init
from kubeai.torch.ranks import RoundRanks
from kubeai.torch.training import Batch, Sharded, train
from torch.distributed.fsdp import fully_shard

_SAMPLES, _GLOBAL_BATCH = 64, 16


def _build(ranks: RoundRanks) -> tuple[dict[str, object], torch.nn.Module]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(), torch.nn.Linear(32, 1))
    fully_shard(model, mesh=ranks.mesh())
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}, model


def _backward(model: torch.nn.Module, batch: Batch) -> None:
    features = torch.sin(torch.tensor(batch.indices)[:, None] * torch.arange(1, 17, dtype=torch.float32))
    (model(features).square().mean() * batch.weight).backward()


def main(directory: str, steps: int) -> None:
    init()
    state = Sharded(directory, _build, in_memory_at_stop=True)
    train(state, _backward, samples=_SAMPLES, global_batch=_GLOBAL_BATCH, steps=steps, backend="gloo")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
