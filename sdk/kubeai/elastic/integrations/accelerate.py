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

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator

import torch
from accelerate import skip_first_batches
from accelerate.utils import broadcast_object_list

from kubeai.elastic import api
from kubeai.elastic.loop import finish_step

if TYPE_CHECKING:
    import os

_NAME = "step-{:012d}"
_COMPLETE = re.compile(r"step-(\d{12,})")
_DRAFT = "incomplete"


def resumable(
    accelerator: Any, loader: Any, directory: str | os.PathLike[str], *, epochs: int, keep: int = 2
) -> Iterator[Any]:
    """Yield the batches of all epochs, and save and exit, or save and go on, when the supervisor asks for it.

    It begins with the newest complete checkpoint, and continues with the batch after it. The steps that it counts are
    batches. Between batches whose gradients are being accumulated it neither saves nor exits, because no checkpoint
    holds those gradients.

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
    step = checkpoints.load()
    api.resumed(step)
    while step < epochs * len(loader):
        for batch in _rest_of_epoch(loader, step):
            yield batch
            step += 1
            if accelerator.sync_gradients:
                finish_step(step, checkpoints.save)


def _rest_of_epoch(loader: Any, step: int) -> Iterator[Any]:
    """Yield the remaining batches of the epoch of `step`, beginning with the one that follows this step."""
    loader.iteration, trained = divmod(step, len(loader))
    if not trained:
        yield from loader
        return
    batches = iter(skip_first_batches(loader, trained))
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

    def load(self) -> int:
        """Load the newest complete checkpoint; returns its number of finished steps, 0 if there is none."""
        # On a shared file system, a rank may see later than others what a run before has written.
        (step,) = broadcast_object_list([max(self._complete(), default=0)])
        if step:
            self.accelerator.load_state(str(self.directory / _NAME.format(step)))
        return int(step)

    def save(self, step: int) -> None:
        """Write a checkpoint; returns when it is complete, in every rank."""
        draft, path = self.directory / _DRAFT, self.directory / _NAME.format(step)
        if self.accelerator.is_main_process:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        self.accelerator.save_state(str(draft))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            shutil.rmtree(path, ignore_errors=True)
            draft.rename(path)
            for old in self._complete()[: -self.keep]:
                shutil.rmtree(self.directory / _NAME.format(old))
        # No rank reports a checkpoint that could still turn out to be incomplete.
        self.accelerator.wait_for_everyone()

    def _complete(self) -> list[int]:
        found = (_COMPLETE.fullmatch(path.name) for path in self.directory.glob("step-*"))
        return sorted(int(name[1]) for name in found if name)
