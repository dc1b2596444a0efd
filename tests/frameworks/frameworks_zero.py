"""A training process of DDP and ZeroRedundancyOptimizer with AdamW, dropout and a schedule.

    … frameworks_zero.py KIND ROOT STEPS STEP_SECONDS NAME

It takes what frameworks_handover.py takes, but for the kind `otherwise`. With `ends-in-the-optimizer-S` in
a file, this process kills itself in the optimizer of step S, after its own update and before it sends that.
"""

import os
import signal
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from kubeai.torch.ranks import RoundRanks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.frameworks import frameworks_handover
from tests.frameworks.frameworks_handover import FEATURES, PERIOD, Built, Counted
from tests.frameworks.frameworks_member import RoundsMember
from tests.testkit import torch_exit

_ME = RoundsMember.from_arguments()
_IS_EXACT = _ME.kind.startswith("exact")
_WIDTHS = (FEATURES, 128, 96, 1) if _IS_EXACT else (FEATURES, 128, 120, 128, 100, 128, 96, 1)
"""Layers of several sizes, so that other numbers of ranks divide their parameters otherwise.

Fewer where a test strikes at each message, as each tensor of a layer is one.
"""


def _build(ranks: RoundRanks) -> tuple[dict[str, Any], Built]:
    torch.manual_seed(0)
    layers: list[Any] = []
    for width, following in pairwise(_WIDTHS):
        layers += [torch.nn.Linear(width, following), torch.nn.Tanh(), torch.nn.Dropout(0.2)]
    model = DistributedDataParallel(torch.nn.Sequential(layers[0], Counted(), *layers[1:-2]).double())
    parameters = list(model.parameters())
    optimizer = ZeroRedundancyOptimizer(
        [
            {"params": [each for each in parameters if each.dim() > 1]},
            {"params": [each for each in parameters if each.dim() == 1], "weight_decay": 0.0},
        ],
        torch.optim.AdamW,
        lr=0.01,
    )
    owned = {id(each) for group in optimizer.optim.param_groups for each in group["params"]}
    numbers = [number for number, each in enumerate(parameters) if id(each) in owned]
    _ME.record(event="owns", round=ranks.round, numbers=numbers)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=PERIOD)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    if not _IS_EXACT:  # it records the state itself
        # Before each step and after it, so that whatever comes between two steps changes nothing.
        model.register_forward_pre_hook(lambda *_: _record_state("before", model, optimizer, scheduler.last_epoch))
        optimizer.register_step_post_hook(lambda *_: _record_state("after", model, optimizer, scheduler.last_epoch))
    optimizer.optim.register_step_post_hook(lambda *_: _end_in_the_optimizer(scheduler.last_epoch))
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}, Built(
        model, optimizer, scheduler, ranks.round
    )


def _record_state(event: str, model: Any, optimizer: Any, step: int) -> None:
    """Record a number that changes with each bit of the parameters and of the optimizer's consolidated state."""
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        found = optimizer.state_dict()["state"]
        tensors = [*model.parameters(), *(each for state in found.values() for _, each in sorted(state.items()))]
        total = 0
        for number, tensor in enumerate(tensors):
            bits = tensor.detach().double().flatten().view(torch.int64)
            total += int((bits * (2 * torch.arange(len(bits)) + 1)).sum()) * (2 * number + 1)
        _ME.record(event=event, step=step, state=total % 2**64, tensors=len(tensors))


def _end_in_the_optimizer(step: int) -> None:
    if _ME.is_told(f"ends-in-the-optimizer-{step}"):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch_exit.run(lambda: frameworks_handover.main(_build))
