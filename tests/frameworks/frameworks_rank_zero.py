"""DDP as scripts were written before ranks could agree: rank 0 alone is told to stop, saves and exits.

frameworks_rank_zero.py CHECKPOINT STEPS
"""

import sys
from pathlib import Path

import kubeai.elastic as kubeai
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(checkpoint: Path, steps: int) -> None:
    dist.init_process_group("gloo")
    kubeai.init()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        first = saved["step"]
    for step in range(first, steps):
        if kubeai.check_alive() == False:  # noqa: E712 - as users write it
            if dist.get_rank() == 0:
                torch.save({"model": model.state_dict(), "step": step}, checkpoint)
            sys.exit(-1)
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        model(torch.randn(8, 16, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
