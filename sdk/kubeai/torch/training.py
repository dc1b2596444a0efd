"""A training loop for scripts that have none: it goes on in process when hosts leave or join, announced or not.

    import kubeai.elastic as kubeai
    from kubeai.torch.training import Replicated, train

    def backward(module, batch):
        loss = loss_of(module, [data[index] for index in batch.indices])
        (loss * batch.weight).backward()

    kubeai.init()
    state = Replicated({"model": model, "optimizer": optimizer}, save, load)
    train(state, backward, samples=len(data), global_batch=64, steps=10_000)

`kubeai.torch.loop` is for a script with a loop of its own.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Callable, TypeVar

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

from .data import Batch, DataOrder
from .loop import ElasticLoop, RankLost
from .sampler import permutation
from .settings import Limits, PeerCopies
from .states import Replicated, Sharded

if TYPE_CHECKING:
    from .states import TrainedState

__all__ = ["Batch", "Limits", "PeerCopies", "Replicated", "Sharded", "train"]

T = TypeVar("T")


def train(  # noqa: PLR0913 - what a training consists of
    state: TrainedState[T],
    backward: Callable[[T, Batch], object],
    *,
    samples: int,
    global_batch: int,
    steps: int,
    seed: int = 0,
    every: int | None = None,
    backend: str | None = None,
    limits: Limits | None = None,
) -> T:
    """Train until `steps` steps are finished, and return what `build` has made last.

    It makes the default process group itself, which remains initialised. Each step calls `zero_grad()` of the
    optimizers, `backward` and `step()` of the optimizers. A step that fails because a rank was lost is repeated in the
    next round.

    Args:
        state: `Replicated` or `Sharded`.
        backward: Called as `backward(built, batch)`, with what `build` has made. It computes the gradients of
            `batch.weight` times the mean loss of the samples `batch.indices`.
        samples: The size of the data set.
        global_batch: The number of samples in each step, over all ranks; at least the number of ranks.
        steps: The number of steps, counted from the beginning of the whole training.
        seed: Of the order of the samples.
        every: Also save each time so many steps are finished.
        backend: Of the process group; nccl if there are GPUs, otherwise gloo.
        limits: How long to wait.

    Raises:
        ValueError: There are no samples, or fewer in a step than ranks.
        RuntimeError: Ranks were lost and there was no next round. Errors of `backward`, `save` and `load` pass through.
    """
    order = DataOrder(samples, global_batch, lambda epoch: permutation(samples, seed, epoch))
    loop = ElasticLoop(state, backend=backend, limits=limits)
    for step, built in loop.steps(steps, every=every):
        with contextlib.suppress(RankLost), loop.attempt():
            _make_step(state, backward, built, order.batch(step, dist.get_rank(), dist.get_world_size()))
        del built  # its tensors would stay in memory while those of the next round are made
    return loop.built


def _make_step(state: TrainedState[T], backward: Callable[[T, Batch], object], built: T, batch: Batch) -> None:
    for optimizer in state.optimizers:
        optimizer.zero_grad()
    backward(built, batch)
    for optimizer in state.optimizers:
        optimizer.step()
