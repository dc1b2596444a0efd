"""The part of one rank of a ZeroRedundancyOptimizer, which divides its state among the ranks by whole parameters."""

from __future__ import annotations

import sys
from typing import Any, Iterable

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from torch.optim import Optimizer  # type: ignore[import-not-found,unused-ignore]


def is_zero(optimizer: Any) -> bool:
    """Return whether it is a ZeroRedundancyOptimizer. Its module takes 0.4 s to import, so it is not imported here."""
    module = sys.modules.get("torch.distributed.optim")
    kind = getattr(module, "ZeroRedundancyOptimizer", None)
    return kind is not None and isinstance(optimizer, kind)


def zero_optimizers(optimizers: Iterable[Any]) -> list[Any]:
    """Return those that are ZeroRedundancyOptimizers.

    Raises:
        ValueError: One has `overlap_with_ddp`, so that it divides its state only after some steps, in another way. Or
            one does not divide it among all ranks.
    """
    found = [each for each in optimizers if is_zero(each)]
    if not all(hasattr(each, "optim") for each in found):
        raise ValueError("a ZeroRedundancyOptimizer with overlap_with_ddp=True cannot be saved or handed over")
    if any(dist.get_world_size(each.process_group) < dist.get_world_size() for each in found):
        raise ValueError("a ZeroRedundancyOptimizer with a process group of some ranks cannot be saved or handed over")
    return found


def part_of_zero(optimizer: Any) -> dict[str, Any]:
    """Return the state of this rank in the form of `state_dict`, without a collective.

    `state` has, by the number of the parameter, an entry for each one that this rank owns; empty before the first step.
    `load_state_dict` takes it with the entries of any other parameters.
    """
    owned = {id(parameter) for group in optimizer.optim.param_groups for parameter in group["params"]}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        "state": {
            number: dict(optimizer.optim.state.get(parameter, {}))
            for number, parameter in enumerate(parameters)
            if id(parameter) in owned
        },
        "param_groups": Optimizer.state_dict(optimizer)["param_groups"],  # its own method wants the states of all ranks
    }
