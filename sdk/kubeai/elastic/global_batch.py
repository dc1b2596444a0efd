"""Gradient accumulation that keeps the global batch when the number of ranks changes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Accumulation", "accumulation"]


@dataclass(frozen=True)
class Accumulation:
    """The share of one rank in each global batch, whose micro-batches are numbered from 0.

    Attributes:
        first: Number of the rank's first micro-batch.
        steps: How many micro-batches the rank accumulates before the optimizer's step, from ``first`` on.
        loss_scale: Factor for the mean loss of each micro-batch. With it, the gradients' average over the ranks, as DDP
            and Horovod compute it, is their average over the global batch.
        equal: Whether all ranks have the same number. FSDP needs that, as each of its forward passes is a collective.
    """

    first: int
    steps: int
    loss_scale: float
    equal: bool


def accumulation(global_batch: int, micro_batch: int, *, rank: int, world_size: int) -> Accumulation:
    """Return a rank's share of a global batch; call it again whenever the number of ranks has changed.

    The ranks divide the micro-batches without a gap, so that each sample is used once. If their number does not divide
    them, the first ranks have one more.

    Args:
        global_batch: Samples in one step of the optimizer, over all ranks.
        micro_batch: Samples in one forward pass of one rank.
        rank: The number of this rank, from 0.
        world_size: The number of ranks.

    Raises:
        ValueError: A value is out of range, the micro-batches do not divide the global batch, or they are fewer than
            the ranks, one of which would then have none and block the others.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size} ranks")
    if micro_batch < 1 or global_batch < 1 or global_batch % micro_batch:
        raise ValueError(f"micro-batches of {micro_batch} samples do not divide a global batch of {global_batch}")
    count = global_batch // micro_batch
    if count < world_size:
        raise ValueError(f"{count} micro-batches are too few for {world_size} ranks; use smaller ones")
    each, more = divmod(count, world_size)
    return Accumulation(
        first=rank * each + min(rank, more),
        steps=each + (rank < more),
        loss_scale=world_size / count,
        equal=not more,
    )
