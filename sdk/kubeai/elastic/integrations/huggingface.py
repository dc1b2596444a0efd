"""Stops and resumes a Hugging Face `Trainer`: all ranks save one checkpoint at an agreed step.

    from kubeai.elastic.integrations.huggingface import train

    train(trainer)  # instead of trainer.train()

A tool that makes the Trainer and calls `trainer.train()` itself takes a callback instead:

    from kubeai.elastic.integrations.huggingface import ElasticCallback, latest_checkpoint

    Trainer(..., callbacks=[ElasticCallback()]).train(resume_from_checkpoint=latest_checkpoint(output_dir))

The checkpoints are the Trainer's own, in its `output_dir`, which is on a file system that all ranks share. They are
written whatever `save_strategy` says. While one is being written, it holds the file `checkpoint-is-incomplete.txt`.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from kubeai.elastic import api, loop

if TYPE_CHECKING:
    import os

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# The name that Transformers gives it where it marks its own just-in-time checkpoints.
_INCOMPLETE = "checkpoint-is-incomplete.txt"
# The Trainer writes it after all other files of rank 0.
_STATE = "trainer_state.json"
_KEY = "kubeai"


def train(trainer: Any, **arguments: Any) -> Any:
    """Call `trainer.train(**arguments)`, and save and exit, or save and go on, when the supervisor asks for it.

    Training resumes from the newest complete checkpoint in the Trainer's `output_dir`, unless the arguments have
    `resume_from_checkpoint`. If another number of ranks has written it with DeepSpeed, rank 0 converts it first, beside
    it in its directory, to DeepSpeed's universal form, which is removed once it is loaded.

    Returns what `trainer.train` returns. After a stop it does not return, but ends the process by SystemExit with a
    non-zero code, before another batch is trained.
    """
    arguments.setdefault("resume_from_checkpoint", latest_checkpoint(trainer.args.output_dir))
    # On a shared file system, a rank may see later than others what a run before has written.
    (arguments["resume_from_checkpoint"],) = broadcast_object_list([arguments["resume_from_checkpoint"]])
    callback = ElasticCallback(trainer)
    trainer.add_callback(callback)
    if getattr(trainer, "is_deepspeed_enabled", False):
        _load_of_any_number_of_ranks(trainer, arguments["resume_from_checkpoint"])
    try:
        return trainer.train(**arguments)
    except Exception as error:
        if callback.is_saving:
            api.checkpoint_failed(error, callback.step)
        raise


def latest_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the path of the newest complete checkpoint of a Trainer, or None if there is none."""
    found = ((_CHECKPOINT.fullmatch(path.name), path) for path in Path(output_dir).glob("checkpoint-*"))
    complete = []
    for name, path in found:
        if name is None or (path / _INCOMPLETE).exists():
            continue
        with contextlib.suppress(OSError, ValueError):
            json.loads((path / _STATE).read_text(encoding="utf-8"))
            complete.append((int(name[1]), path))
    return str(max(complete)[1]) if complete else None


class ElasticCallback(TrainerCallback):  # type: ignore[misc]  # It is not installed where types are checked.
    """Saves and exits, or saves and goes on, when the supervisor asks for it.

    Args:
        trainer: The Trainer. With it, batches of evaluations count as steps, so that a long evaluation delays no stop:
            the state after the last training step is saved, and the rest of that evaluation is not made up for. Without
            it, a stop waits for the end of an evaluation.

    Attributes:
        step: The steps so far.
        is_saving: Whether a checkpoint is being written.
    """

    def __init__(self, trainer: Any = None) -> None:
        self.step = 0
        self.is_saving = False
        self._trainer = trainer
        self._stops = False
        self._begun = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - Trainer's hooks
        """Connect this process, and report the step at which this run starts."""
        # Without a process group, as with one process, the Trainer's arguments alone know the rank.
        rank, size = int(args.process_index), int(args.world_size)
        api.init(lambda: rank, collective=size > 1, world_size=lambda: size)
        self.step = state.stateful_callbacks.get(_KEY, {}).get("step", state.global_step)
        api.resumed(self.step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a finished training step, unless the first batch of the evaluation that follows counts it."""
        is_counted_later = control.should_evaluate and self._trainer is not None
        if not is_counted_later and self._finish_step():
            # The Trainer writes it at once, and before anything else but an evaluation.
            control.should_save = True
        if control.should_save:
            self._begin_save(args, state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint that the Trainer writes at the end of an epoch."""
        if control.should_save:
            self._begin_save(args, state)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a batch of an evaluation during training, and save now: the Trainer would save after the evaluation."""
        if self._trainer is not None and self._trainer.is_in_train and self._finish_step():
            self._begin_save(args, state)
            self._trainer._save_checkpoint(self._trainer.model, trial=None)  # noqa: SLF001 - there is no public way
            self.on_save(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Mark the checkpoint as complete, report it, and exit if the job stops."""
        processes = PartialState()
        processes.wait_for_everyone()
        if args.should_save:
            Path(args.output_dir, f"checkpoint-{state.global_step}", _INCOMPLETE).unlink(missing_ok=True)
        # No rank reports a checkpoint that could still turn out to be incomplete.
        processes.wait_for_everyone()
        self.is_saving = False
        api.checkpoint_saved(self.step, seconds=time.monotonic() - self._begun)
        if self._stops:
            api.exit_for_resume()

    def _finish_step(self) -> bool:
        """Count a step and return whether all ranks save now."""
        self.step += 1
        checkpoint, self._stops = loop.asked(self.step)
        return checkpoint or self._stops

    def _begin_save(self, args: Any, state: Any) -> None:
        """Mark the checkpoint that is about to be written as incomplete."""
        self._begun, self.is_saving = time.monotonic(), True
        state.stateful_callbacks[_KEY] = {"step": self.step}
        if args.should_save:
            directory = Path(args.output_dir, f"checkpoint-{state.global_step}")
            directory.mkdir(parents=True, exist_ok=True)
            (directory / _INCOMPLETE).touch()


def _load_of_any_number_of_ranks(trainer: Any, checkpoint: Any) -> None:
    """Convert DeepSpeed's part of a checkpoint, and have the Trainer load it, if another number of ranks wrote it."""
    if not isinstance(checkpoint, str):
        return
    from .universal import convert_latest  # noqa: PLC0415 - not every Trainer has DeepSpeed

    directory = Path(checkpoint)
    universal = convert_latest(directory, trainer.args.world_size)
    if universal is not None:
        settings = trainer.accelerator.state.deepspeed_plugin.deepspeed_config.setdefault("checkpoint", {})
        settings["load_universal"] = True
        trainer.add_callback(_ConvertedCheckpoint(trainer, directory, universal))


class _ConvertedCheckpoint(TrainerCallback):  # type: ignore[misc]
    """Removes a converted checkpoint once it is loaded. What is loaded later is not converted."""

    def __init__(self, trainer: Any, directory: Path, universal: str) -> None:
        self._trainer = trainer
        self._directory = directory
        self._universal = universal

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        from .universal import remove_converted  # noqa: PLC0415

        self._trainer.model_wrapped._config.load_universal_checkpoint = False  # noqa: SLF001 - there is no public way
        remove_converted(self._directory, self._universal)
