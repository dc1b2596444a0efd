"""Stops and resumes PyTorch Lightning: all ranks save one checkpoint at an agreed step.

    from kubeai.elastic.integrations.lightning import AgreedStop, latest_checkpoint

    trainer = Trainer(callbacks=[AgreedStop("/checkpoints/resnet")], ...)
    trainer.fit(model, ckpt_path=latest_checkpoint("/checkpoints/resnet"))

Lightning itself resumes in mid-epoch on data that it has already seen. With this callback it continues with the next
batch: the callback records the state of each rank's random number generators. On a resume it draws the batches of the
epoch that were trained on before once more, without training on them. This holds for every checkpoint that Lightning
writes while the callback is in the trainer.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from kubeai.elastic import api
from kubeai.elastic.loop import finish_step

from .epochs import rescaled
from .random_state import random_state, set_random_state

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

if TYPE_CHECKING:
    import os

_NAME = "step-{:012d}.ckpt"
_COMPLETE = re.compile(r"step-(\d{12,})\.ckpt")
_DRAFT = ".incomplete-"
_KEY = "kubeai"


def latest_checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """Return the path of the newest complete checkpoint, for `fit(ckpt_path=…)`; None if there is none.

    Call it in every rank, before `fit`.
    """
    complete = _complete(Path(directory))
    return str(complete[-1]) if complete else None


class AgreedStop(Callback):  # type: ignore[misc]  # Lightning is not installed where types are checked.
    """Saves in all ranks and exits, or goes on, when the supervisor and the ranks have agreed on the present step.

    The steps that it counts are optimizer steps and validation batches, so that a long validation delays no stop. A
    stop in a validation saves what was trained before. The next run repeats that validation from its start. Batches
    whose gradients are still being accumulated are no steps, because no checkpoint holds those gradients.

    The process ends by SystemExit with a non-zero code out of `fit`, before another batch is trained.

    Args:
        directory: Of checkpoints, on a file system that all ranks share. The first save creates it.
        keep: How many complete checkpoints of this callback remain. Each save removes older ones.

    Raises:
        ValueError: `keep` is below 1.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 2) -> None:
        super().__init__()
        if keep < 1:
            raise ValueError(f"keep is {keep}, but one checkpoint is needed to resume from")
        self._directory = Path(directory)
        self._keep = keep
        self._step = 0
        self._updates = 0  # what `trainer.global_step` was after the last batch
        self._is_accumulating = False
        self._epoch_random = random_state()
        self._validation_random: dict[str, Any] | None = None  # while a validation is running
        self._loaded: dict[str, Any] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's hooks
        """Start to listen for the supervisor. The process group, if there is one, has been initialised."""
        api.init(lambda: int(trainer.global_rank), collective=True, world_size=lambda: int(trainer.world_size))
        self._loaded = None

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Keep the values that `on_save_checkpoint` has added to the checkpoint until the training starts."""
        self._loaded = checkpoint.get(_KEY)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Remember the random generators from before Lightning creates the first epoch's iterator."""
        self._epoch_random = random_state()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Continue the epoch of the checkpoint with the next batch, and report the step at which this run starts."""
        self._updates = self._step = trainer.global_step
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._step = loaded["step"]
            self._continue_epoch(trainer, loaded)
        api.resumed(self._step)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Remember the generators from before Lightning creates this epoch's iterator. The first one exists already."""
        if trainer.current_epoch > 0:
            self._epoch_random = random_state()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:  # noqa: ARG002
        """Finish a step, unless gradients are being accumulated or a validation follows, which finishes it."""
        self._is_accumulating = trainer.global_step == self._updates
        self._updates = trainer.global_step
        epoch_loop = trainer.fit_loop.epoch_loop
        # Lightning would not make up for a validation that is due after the batch at which it was stopped.
        if not epoch_loop._should_check_val_fx(trainer.fit_loop._data_fetcher):  # noqa: SLF001 - no public way
            self._finish_step(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Finish the training step before this validation."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if self._validation_random is not None:  # the last run was stopped in this validation
            set_random_state(self._validation_random)
        else:
            self._validation_random = random_state()
            self._finish_step(trainer)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:  # noqa: ARG002
        """Finish a step."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._finish_step(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Forget the random state that a stop in this validation would have saved."""
        self._validation_random = None

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Add the position in the epoch, and the random state of every rank. Collective, as Lightning's saves are."""
        progress = trainer.fit_loop.epoch_loop.batch_progress
        is_in_validation = self._validation_random is not None
        own = {"epoch": self._epoch_random, "present": self._validation_random or random_state()}
        ranks: list[Any] = [own]
        if dist.is_available() and dist.is_initialized():
            ranks = [None] * dist.get_world_size()
            dist.all_gather_object(ranks, own)
        checkpoint[_KEY] = {
            "step": self._step,
            "batches": 0 if progress.is_last_batch and not is_in_validation else progress.current.processed,
            "batches_of_epoch": trainer.num_training_batches,
            "is_in_validation": is_in_validation,
            "ranks": ranks,
        }
        if is_in_validation:
            _restart_validation(checkpoint["loops"]["fit_loop"])

    def _finish_step(self, trainer: Any) -> None:
        if not self._is_accumulating:
            self._step += 1
            finish_step(self._step, lambda step: self._save(trainer, step))

    def _save(self, trainer: Any, step: int) -> None:
        """Write a checkpoint in all ranks. It gets its name once it is complete."""
        path = self._directory / _NAME.format(step)
        draft = path.with_name(_DRAFT + path.name)
        trainer.save_checkpoint(draft)
        error = self._publish(draft, path) if trainer.is_global_zero else None
        # Every rank hears of it, so that none reports what is not there, or waits for a rank 0 that has failed.
        error = trainer.strategy.broadcast(error)
        if error is not None:
            raise OSError(f"the checkpoint {path} could not be completed: {error}")

    def _publish(self, draft: Path, path: Path) -> str | None:
        """Give a complete checkpoint its name, and remove older and unfinished ones.

        Returns the error if that fails.
        """
        try:
            if path.is_dir():  # of a sharded checkpoint, which a rename does not replace
                shutil.rmtree(path)
            draft.replace(path)
            old = _complete(self._directory)[: -self._keep]
            for unneeded in [*old, *self._directory.glob(f"{_DRAFT}*")]:
                if unneeded.is_dir():  # of a sharded one
                    shutil.rmtree(unneeded)
                else:
                    unneeded.unlink(missing_ok=True)
        except OSError as error:
            return str(error)
        return None

    def _continue_epoch(self, trainer: Any, loaded: dict[str, Any]) -> None:
        """Continue with the batch that would have come next in the run that has saved the checkpoint."""
        ranks = loaded["ranks"]
        own = ranks[trainer.global_rank] if len(ranks) == trainer.world_size else None
        fetcher = trainer.fit_loop._data_fetcher  # noqa: SLF001 - no public way
        batches = rescaled(loaded["batches"], loaded["batches_of_epoch"], trainer.num_training_batches)
        if batches != loaded["batches"]:
            present = trainer.fit_loop.epoch_loop.batch_progress.current
            present.ready = present.started = present.processed = present.completed = batches
        if own is not None:
            self._epoch_random = own["epoch"] if batches else own["present"]
            self._validation_random = own["present"] if loaded["is_in_validation"] else None
            set_random_state(self._epoch_random)
        # Lightning restores the loaders' own states, as those of torchdata's StatefulDataLoader.
        if not any(hasattr(loader, "load_state_dict") for loader in fetcher.combined_loader.flattened):
            _draw(fetcher, batches, trainer.fit_loop.epoch_progress.current.processed)
        if own is not None and batches:
            set_random_state(own["present"])


def _draw(fetcher: Any, batches: int, epoch: int) -> None:
    """Start the epoch's data from its beginning, and skip `batches` batches."""
    for loader in fetcher.combined_loader.flattened:
        for sampler in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
    iter(fetcher)
    for _ in range(batches):
        next(fetcher)
    fetcher.fetched -= batches  # Lightning adds them when it starts


def _restart_validation(fit_loop: dict[str, Any]) -> None:
    """Change the saved progress, so that Lightning repeats the present validation from its first batch.

    It goes back to a validation of which a batch has been started and not finished.
    """
    progress = fit_loop["epoch_loop.val_loop.batch_progress"]
    before = progress["total"]["completed"] - progress["current"]["completed"]
    for counts, finished in ((progress["total"], before), (progress["current"], 0)):
        counts.update(ready=finished + 1, started=finished + 1, processed=finished, completed=finished)
    progress["is_last_batch"] = False


def _complete(directory: Path) -> list[Path]:
    """Return the paths of the complete checkpoints, the newest last."""
    found = ((_COMPLETE.fullmatch(path.name), path) for path in directory.glob("*.ckpt"))
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]
