"""DeepSpeed with ZeRO: the job stops between two updates of the parameters, and all ranks write the checkpoint.

torchrun --nproc-per-node 4 deepspeed_zero.py DIRECTORY [STEPS]
"""

import sys
from typing import Iterator

import deepspeed
import torch
import torch.distributed as dist

import kubeai.elastic as kubeai
from kubeai.elastic.integrations.deepspeed import supervise

_ACCUMULATED = 2
_CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": _ACCUMULATED,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}


def batches_from(first: int, steps: int) -> Iterator[torch.Tensor]:
    """Yield this rank's batches from step `first` on. The same step has the same batches in every run."""
    for step in range(first, steps):
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        for _ in range(_ACCUMULATED):
            yield torch.randn(8, 16, generator=generator)


def main(directory: str, steps: int) -> None:
    """Train."""
    deepspeed.init_distributed()
    kubeai.init(collective=True)  # a save needs all ranks
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(), torch.nn.Linear(32, 1))
    engine, *_ = deepspeed.initialize(model=model, config=_CONFIG)
    first = supervise(engine, directory)
    for batch in batches_from(first, steps):
        loss = engine(batch).square().mean()
        sys.stdout.write(f"rank {dist.get_rank()} step {engine.global_steps} loss {loss.item().hex()}\n")
        sys.stdout.flush()
        engine.backward(loss)
        engine.step()  # may save and exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
