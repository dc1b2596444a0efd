"""Stops and resumes a training loop that is written with Hugging Face Accelerate.

    from kubeai.elastic.integrations.accelerate import resumable

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in resumable(accelerator, loader, "/checkpoints/resnet", epochs=3):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()

It replaces the loops over epochs and batches. The checkpoints are those of `accelerator.save_state`. One has its name
only once it is complete.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator

import torch
from accelerate import skip_first_batches
from accelerate.utils import broadcast_object_list

from kubeai.elastic import api
from kubeai.elastic.loop import finish_step

from .epochs import rescaled

if TYPE_CHECKING:
    import os

_NAME = "step-{:012d}"
_COMPLETE = re.compile(r"step-(\d{12,})")
_DRAFT = "incomplete"
_POSITION = "kubeai-position.json"


def resumable(
    accelerator: Any, loader: Any, directory: str | os.PathLike[str], *, epochs: int, keep: int = 2
) -> Iterator[Any]:
    """Yield the batches of all epochs, and save and exit, or save and go on, when the supervisor asks for it.

    It begins with the newest complete checkpoint, and continues with the batch after it. The steps that it counts are
    the batches of each rank. If their number in an epoch has changed, as with another number of ranks, it continues at
    the same part of the epoch. Between batches whose gradients are being accumulated it neither saves nor exits,
    because no checkpoint holds those gradients.

    Accelerate's `DataLoaderConfiguration(use_seedable_sampler=True)` makes the order of a shuffled epoch the same in
    each run. Without it, a run that resumes in an epoch would train on some batches twice and on others never.

    Args:
        accelerator: All that is to be saved is prepared by it, or registered with it.
        loader: A prepared data loader whose length is known.
        directory: Of checkpoints, on a file system that all ranks share. The first save creates it.
        epochs: How many there are, with those before the checkpoint.
        keep: How many complete checkpoints remain. Each save removes older ones.

    Raises:
        TypeError: The loader's length is not known.
        ValueError: `keep` is below 1.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}, but one checkpoint is needed to resume from")
    count = accelerator.num_processes
    api.init(lambda: int(accelerator.process_index), collective=count > 1, world_size=lambda: int(count))
    checkpoints = _AccelerateCheckpoints(accelerator, Path(directory), keep)
    position = checkpoints.load(len(loader))

    def save(_: int) -> None:
        checkpoints.save(position)

    api.resumed(position.step)
    while position.epoch < epochs and position.batches_of_epoch:
        for batch in _rest_of_epoch(loader, position):
            yield batch
            position = position.after_batch()
            if accelerator.sync_gradients:
                finish_step(position.step, save)


@dataclass(frozen=True)
class _Position:
    """How far a job has come: the batches that each rank has trained on, and those of them in the present epoch.

    Attributes:
        step: All of them, in all runs.
        epoch: The number of finished epochs.
        batches: Those of the present epoch.
        batches_of_epoch: How many a whole epoch has for each rank.
    """

    step: int
    epoch: int
    batches: int
    batches_of_epoch: int

    def after_batch(self) -> _Position:
        finished, batches = divmod(self.batches + 1, self.batches_of_epoch)
        return replace(self, step=self.step + 1, epoch=self.epoch + finished, batches=batches)

    def with_epochs_of(self, batches_of_epoch: int) -> _Position:
        """Return the same position where each rank has another number of batches."""
        batches = rescaled(self.batches, self.batches_of_epoch, batches_of_epoch)
        return replace(self, batches=batches, batches_of_epoch=batches_of_epoch)


def _rest_of_epoch(loader: Any, position: _Position) -> Iterator[Any]:
    """Yield the remaining batches of the present epoch."""
    loader.set_epoch(position.epoch)
    if not position.batches:
        yield from loader
        return
    rest = skip_first_batches(loader, position.batches)
    rest.iteration = position.epoch  # with which older Accelerates do not begin
    batches = iter(rest)
    # An iterator draws from the random number generator when it starts. In the run that has saved, this was before.
    with torch.random.fork_rng(devices=[]):
        first = next(batches)
    yield first
    yield from batches


@dataclass
class _AccelerateCheckpoints:
    """The checkpoints of one job. All ranks call `load` and `save`."""

    accelerator: Any
    directory: Path
    keep: int

    def load(self, batches_of_epoch: int) -> _Position:
        """Load the newest complete checkpoint, if there is one, and return its position."""
        # On a shared file system, a rank may see later than others what a run before has written.
        (position,) = broadcast_object_list([self._newest() if self.accelerator.is_main_process else None])
        if position is None:
            return _Position(0, 0, 0, batches_of_epoch)
        self.accelerator.load_state(str(self.directory / _NAME.format(position.step)))
        reached: _Position = position.with_epochs_of(batches_of_epoch)
        return reached

    def save(self, position: _Position) -> None:
        """Write a checkpoint; returns when it is complete, in every rank."""
        draft, path = self.directory / _DRAFT, self.directory / _NAME.format(position.step)
        if self.accelerator.is_main_process:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        self.accelerator.save_state(str(draft))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            (draft / _POSITION).write_text(json.dumps(asdict(position)), encoding="ascii")
            shutil.rmtree(path, ignore_errors=True)
            draft.rename(path)
            for old in self._complete()[: -self.keep]:
                shutil.rmtree(self.directory / _NAME.format(old))
        # No rank reports a checkpoint that could still turn out to be incomplete.
        self.accelerator.wait_for_everyone()

    def _newest(self) -> _Position | None:
        complete = self._complete()
        if not complete:
            return None
        saved = (self.directory / _NAME.format(complete[-1]) / _POSITION).read_text(encoding="ascii")
        return _Position(**json.loads(saved))

    def _complete(self) -> list[int]:
        found = (_COMPLETE.fullmatch(path.name) for path in self.directory.glob("step-*"))
        return sorted(int(name[1]) for name in found if name)
