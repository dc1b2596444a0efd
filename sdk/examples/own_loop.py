"""A loop of one's own that goes on in process: loader with workers, autocast, scaler, accumulation, clipping, schedule.

torchrun --rdzv-backend=kubeai --rdzv-id=job --nnodes=1:4 own_loop.py CHECKPOINT [STEPS]
"""

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import kubeai.elastic as kubeai
from kubeai.torch.loop import ElasticLoop, RankLost, Replicated, RoundRanks
from kubeai.torch.sampler import StepSampler

GLOBAL_BATCH, MICRO_BATCH = 32, 4


def load(path: Path, states: Any) -> int:
    """Return the number of finished steps in the checkpoint, 0 without one."""
    if not path.exists():
        return 0
    saved = torch.load(path)
    for name, each in states.items():
        each.load_state_dict(saved[name])
    return int(saved["step"])


def save(path: Path, states: Any, step: int) -> None:
    """Write to a draft and rename it, so that a kill leaves the old checkpoint."""
    if dist.get_rank() == 0:
        draft = path.with_suffix(".draft")
        torch.save({**{name: each.state_dict() for name, each in states.items()}, "step": step}, draft)
        draft.replace(path)


def main(path: Path, steps: int) -> None:
    """Train."""
    kubeai.init()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1000, 16))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    scaler = torch.amp.GradScaler("cpu")
    states = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    sampler = StepSampler(len(data), GLOBAL_BATCH, MICRO_BATCH)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=1, persistent_workers=True)

    def build(ranks: RoundRanks) -> Any:
        """Make what depends on the ranks, in each round."""
        sampler.begin(ranks.step, ranks.rank, ranks.size)
        return DistributedDataParallel(model), iter(loader)

    state = Replicated(states, lambda step: save(path, states, step), lambda: load(path, states), build=build)
    loop = ElasticLoop(state, backend="gloo")
    for step, (wrapped, batches) in loop.steps(steps, every=100):
        try:
            with loop.attempt():
                optimizer.zero_grad()
                for number in range(sampler.share.steps):
                    (features,) = next(batches)
                    torch.manual_seed(1000 * step + sampler.share.first + number)  # dropout, whoever computes it
                    is_last = number == sampler.share.steps - 1
                    with contextlib.nullcontext() if is_last else wrapped.no_sync():
                        with torch.autocast("cpu", torch.bfloat16):
                            loss = wrapped(features).square().mean()
                        scaler.scale(loss * sampler.share.loss_scale).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
        except RankLost:
            continue  # the step comes again in the next round
        sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} step {step} loss {loss.item()}\n")
        sys.stdout.flush()
    save(path, states, steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
