"""A sampler for loaders whose position is the number of finished steps, whatever the number of ranks."""

from __future__ import annotations

from array import array
from typing import Iterator, Sequence

import torch  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic.loop import Accumulation, accumulation

from .data import DataOrder


class StepSampler:
    """The micro-batches of one rank from a step on, without an end: the `batch_sampler` of any map-style `DataLoader`.

        sampler = StepSampler(len(data), global_batch=64, micro_batch=8)
        loader = DataLoader(data, batch_sampler=sampler, num_workers=2)

        def build(ranks):
            sampler.begin(ranks.step, ranks.rank, ranks.size)
            return DistributedDataParallel(model), iter(loader)

    Each iterator begins at the first micro-batch of that step. So what the workers of the loader have read ahead for
    another number of ranks is dropped with the iterator, and no sample is left out or used twice.

    Args:
        samples: The size of the data set.
        global_batch: The number of samples in each step, over all ranks.
        micro_batch: The number of samples in each forward pass. It divides `global_batch`.
        seed: Of the order of the samples.

    Raises:
        ValueError: There is no sample, or the micro-batches do not divide a step.
    """

    def __init__(self, samples: int, global_batch: int, micro_batch: int, *, seed: int = 0) -> None:
        self._order = DataOrder(samples, global_batch, lambda epoch: permutation(samples, seed, epoch))
        self._sizes = global_batch, micro_batch
        self.begin(0, 0, 1)

    def begin(self, step: int, rank: int, size: int) -> Accumulation:
        """Let the next iterator begin at a step, as one rank of so many; returns the rank's share of each step.

        Raises:
            ValueError: There are more ranks than micro-batches in a step.
        """
        self.share = accumulation(*self._sizes, rank=rank, world_size=size)
        self._step = step
        return self.share

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the samples of each micro-batch, as many in each step as `share.steps`."""
        step, share, micro = self._step, self.share, self._sizes[1]
        while True:
            for number in range(share.first, share.first + share.steps):
                yield self._order.samples(step, number * micro, (number + 1) * micro)
            step += 1


def permutation(samples: int, seed: int, epoch: int) -> Sequence[int]:
    """Return the order of one epoch. The same seed gives the same order in every process."""
    generator = torch.Generator().manual_seed(seed + (epoch << 32))
    return array("q", torch.randperm(samples, generator=generator).tolist())
