"""Which samples a rank has in each step. The step is the only position: nothing about data is stored or sent.

Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence, Tuple

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Batch:
    """The samples of one rank in one step.

    Attributes:
        step: The number of steps finished before.
        indices: The samples of this rank, as indices of the data set; at least one.
        weight: The factor of their mean loss. It is 1 if all ranks have equally many samples. With it, the mean over
            ranks, which DDP and FSDP compute, is the mean over the global batch.
    """

    step: int
    indices: Tuple[int, ...]  # noqa: UP006 - Python 3.8
    weight: float


class DataOrder:
    """The order of samples. Each epoch is a permutation of all samples, and epochs follow one another without a gap.

    A global batch may therefore end one epoch and begin the next one. The step alone gives the global batch, and ranks
    divide it. So the number of ranks may change between any two steps, and every sample is still used once in each
    epoch.

    Args:
        samples: The size of the data set.
        global_batch: The number of samples in each step, over all ranks.
        permutation: Returns the order of an epoch, which is numbered from 0: each of `range(samples)` once. It gives
            the same order in every process.

    Raises:
        ValueError: There is no sample, or a step has none.
    """

    def __init__(self, samples: int, global_batch: int, permutation: Callable[[int], Sequence[int]]) -> None:
        if samples < 1 or global_batch < 1:
            raise ValueError(f"{samples} samples in steps of {global_batch}: both are at least 1")
        self._samples = samples
        self._global_batch = global_batch
        self._permutation = permutation
        self._epoch = -1
        self._order: Sequence[int] = ()

    def batch(self, step: int, rank: int, world_size: int) -> Batch:
        """Return the samples of a rank in a step. The numbers of samples of two ranks differ by at most 1.

        Raises:
            ValueError: There are more ranks than samples in a step.
        """
        if world_size > self._global_batch:
            raise ValueError(f"a global batch of {self._global_batch} is too small for {world_size} ranks")
        first, end = (self._global_batch * each // world_size for each in (rank, rank + 1))
        indices = tuple(self.samples(step, first, end))
        return Batch(step, indices, len(indices) * world_size / self._global_batch)

    def samples(self, step: int, first: int, end: int) -> list[int]:
        """Return the samples `first` to `end` - 1 of the global batch of a step, counted from 0."""
        offset = step * self._global_batch
        found = []
        for position in range(offset + first, offset + end):
            epoch, index = divmod(position, self._samples)
            if epoch != self._epoch:
                self._epoch, self._order = epoch, self._permutation(epoch)
            found.append(int(self._order[index]))
        return found
