"""The training loop of a script that has no framework's callbacks, and the share of a rank in each global batch."""

from __future__ import annotations

import operator
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterable, Iterator, TypeVar

from . import api

if TYPE_CHECKING:
    Save = Callable[[int], object]

__all__ = ["Accumulation", "accumulation", "asked", "finish_step", "steps"]

Batch = TypeVar("Batch")

KEPT = object()
"""A `save` of the package returns it if there is no checkpoint, and hosts that stay have the state in memory."""

_FIRST_PAUSE = 1.0  # seconds; each further one is twice as long
_RESERVE = 2.0  # seconds before the deadline: the report of the save needs some time as well


def steps(
    batches: Iterable[Batch], save: Save, *, first: int = 0, every: int | None = None
) -> Iterator[tuple[int, Batch]]:
    """Yield `(step, batch)` for each batch. Between two batches, save and exit if the supervisor asks for it.

        for step, batch in kubeai.steps(batches_from(first), save, first=first):
            train(batch)

    The body of the loop is one training step. After it, the process saves a checkpoint if one is requested. On a stop,
    it saves and then exits non-zero, so that the job is resumed later. A loop that is left by `break` does neither.

    Args:
        batches: What remains to be trained on. Its first item belongs to step `first`.
        save: Called as `save(step)` in every rank, with the number of finished steps. It returns when the checkpoint is
            complete. If it raises, that is reported, and the exception ends the loop. On a stop, rank 0 tries again
            while the time that is left allows it, unless a save needs all ranks.
        first: The number of finished steps in the checkpoint that this run has loaded, 0 without one.
        every: Also save a checkpoint each time so many steps are finished. None: only on request.

    Raises:
        TypeError: `save` cannot be called with one argument, or `first` is no integer.
        ValueError: `first` is below 0, or `every` is below 1.
    """
    # At the call, as a mistake in `save` would show itself only at a reclaim.
    api.require_call("save", save, 0)
    if operator.index(first) < 0:
        raise ValueError(f"first is {first}: no number of finished steps")
    if every is not None and every < 1:
        raise ValueError(f"every is {every}: no number of steps")
    return _steps(batches, save, first, every)


def _steps(batches: Iterable[Batch], save: Save, first: int, every: int | None) -> Iterator[tuple[int, Batch]]:
    api.resumed(first)
    for step, batch in enumerate(batches, first):
        yield step, batch
        finished = step + 1
        finish_step(finished, save, is_due=every is not None and finished % every == 0, is_alone=True)


def finish_step(step: int, save: Save, *, is_due: bool = False, is_alone: bool = False) -> None:
    """Save and exit, save, or return at once, as the supervisor asks after `step` finished steps.

    For loops that cannot be written with `steps`. Call it once after each step, in every rank.

    Args:
        step: The number of finished steps, the same in every rank.
        save: As for `steps`.
        is_due: Save also if the supervisor does not ask for it.
        is_alone: On a stop, repeat a save that fails, unless `init(collective=True)` says that it needs all ranks.
    """
    checkpoint, stop = asked(step)
    if checkpoint or stop or is_due:
        pause = _FIRST_PAUSE if stop and is_alone else None
        while not _is_saved(step, save, pause) and pause is not None:
            time.sleep(pause)
            pause *= 2
    if stop:
        api.exit_for_resume()


def asked(step: int) -> tuple[bool, bool]:
    """Return whether to save, and whether to stop, after `step` finished steps.

    It asks in this order: a stop that arrives between the two questions would otherwise be saved for now, and again
    after the next step.
    """
    checkpoint = api.should_checkpoint(step)
    return checkpoint, api.should_stop(step)


def saves_need_all_ranks() -> None:
    """Say that a save needs all ranks, as `init(collective=True)` does. A library calls it that knows its state."""
    session = api._session  # noqa: SLF001 - the one session of the process
    if not session.is_child:
        session.monitor.set_member(collective=True)


def _is_saved(step: int, save: Save, pause: float | None) -> bool:
    """Save and report. Return False after a failure that leaves time for another attempt; otherwise raise it."""
    begun = time.monotonic()
    try:
        way = save(step)
    except Exception as error:
        api.checkpoint_failed(error, step)
        if pause is None or not api.may_save_again():
            raise
        # Another attempt may take twice as long, and must end before the deadline. If none is known, there is only one.
        took, left = time.monotonic() - begun, api.seconds_left()
        has_time = pause == _FIRST_PAUSE if left is None else left > pause + 2 * took + _RESERVE
        if not has_time:
            raise
        sys.stderr.write(f"kubeai.elastic: saving after step {step} failed, trying again in {pause:g} s: {error!r}\n")
        return False
    seconds = time.monotonic() - begun
    if way is KEPT:
        api.state_kept(step, seconds=seconds)
    else:
        api.checkpoint_saved(step, seconds=seconds)
    return True


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
