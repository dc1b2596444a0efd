"""Checkpoints of Megatron-core's `dist_checkpointing`: all ranks save at one agreed step.

    from kubeai.elastic.integrations.megatron import MegatronCheckpoints

    def state(*, is_loading):
        parameters = model.sharded_state_dict()
        return {"model": parameters, "optimizer": optimizer.sharded_state_dict(parameters, is_loading=is_loading)}

    def restore(loaded):
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])

    kubeai.init(collective=True)
    checkpoints = MegatronCheckpoints("/checkpoints/gpt", state, restore)
    first = checkpoints.load()
    for step, batch in kubeai.steps(batches_from(first), checkpoints.save, first=first):
        train(batch)

A checkpoint has its name only once it is complete. With what `state` returns, each rank saves the state of its random
number generators, and of those of Megatron's tracker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from .random_state import random_state, set_random_state
from .torch import StepDirectories

if TYPE_CHECKING:
    import os

_RANDOM = "kubeai_random"
_RANKS = "kubeai_ranks"


class MegatronCheckpoints:
    """The checkpoints of one job in one directory, which all ranks share.

    Every rank calls `load` and `save`, with Megatron's model parallelism initialised.

    Args:
        directory: Created if it is missing. On more than one machine, it is on a shared file system.
        state: Called as `state(is_loading=…)`; returns a new sharded state dict of all that is to be saved, with
            strings as keys.
        restore: Called with the loaded state dict.
        keep: How many complete checkpoints remain. Each save removes older ones.

    Raises:
        ValueError: `keep` is below 1.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        state: Callable[..., dict[str, Any]],
        restore: Callable[[dict[str, Any]], object],
        *,
        keep: int = 2,
    ) -> None:
        self._directories = StepDirectories(directory, keep)
        self._state = state
        self._restore = restore

    def load(self) -> int:
        """Load the newest complete checkpoint and return its number of finished steps; 0 if there is none.

        The random number generators continue if it was written by as many ranks.
        """
        step = self._directories.newest()
        if step is None:
            return 0
        path = str(self._directories.path(step))
        wanted = dict(self._state(is_loading=True))
        if dist_checkpointing.load_common_state_dict(path).get(_RANKS) == dist.get_world_size():
            wanted[_RANDOM] = _of_this_rank(None)
        loaded = dist_checkpointing.load(wanted, path)
        random = loaded.pop(_RANDOM, None)
        self._restore(loaded)
        if random is not None:
            set_random_state(random["generators"])
            get_cuda_rng_tracker().set_states(random["tracker"])
        return step

    def save(self, step: int) -> None:
        """Write a checkpoint after `step` finished steps. Returns when it is complete, in every rank.

        Does nothing if there is one of this step already.

        Raises:
            RuntimeError: Rank 0 could not prepare or publish it, or a rank could not write its part. In every rank.
        """
        self._directories.write(step, lambda draft: dist_checkpointing.save(self._whole_state(), str(draft)))

    def _whole_state(self) -> dict[str, Any]:
        random = {"generators": random_state(), "tracker": get_cuda_rng_tracker().get_states()}
        own = {_RANDOM: _of_this_rank(random), _RANKS: dist.get_world_size()}
        return {**self._state(is_loading=False), **own}


def _of_this_rank(value: object) -> ShardedObject:
    return ShardedObject(_RANDOM, value, (dist.get_world_size(),), (dist.get_rank(),))
