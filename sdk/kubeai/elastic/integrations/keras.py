"""Stops and resumes `fit` of Keras 3 on the torch backend: all ranks save at an agreed step.

    from kubeai.elastic.integrations.keras import AgreedStop

    model.fit(x, y, epochs=10, callbacks=[AgreedStop("/checkpoints/resnet")])

The callback also restores, as `keras.callbacks.BackupAndRestore` does, and continues in the middle of an epoch. Keras
saves neither the batch nor the counters from which dropout draws its seeds; the callback adds both. On a resume, the
batches of the epoch that were trained on before are drawn once more, without training on them, so that shuffling and
dropout continue as they would have. The batch hooks of other callbacks are called for those batches as well.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import keras
import torch
import torch.distributed as dist

from kubeai.elastic import api
from kubeai.elastic.loop import finish_step

from .random_state import random_state, set_random_state

_NAME = "step-{:012d}"
_DRAFT = ".incomplete-"
_WEIGHTS = "model.weights.h5"
_POSITION = "position.pt"
_RANDOM = ("epoch_random", "random", "seeds")  # of the position, and of no other rank


class AgreedStop(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not installed where types are checked.
    """Saves in every rank and exits, or goes on, when the supervisor and the ranks have agreed on the present step.

    The steps that it counts are batches of training and of validation, so that a long validation delays no stop. A stop
    in a validation saves what was trained before. The next run repeats that validation from its start.

    Every rank writes its own model, optimizer and random state, so nothing has to be collected from the other ranks. If
    no step can be agreed on, rank 0 saves alone, and the other ranks of the next run load its model.

    The process ends by SystemExit with a non-zero code out of `fit`, before another batch is trained.

    Args:
        directory: Of the checkpoints of one `fit`, on a file system that all ranks share. The first save creates it.
        keep: How many checkpoints remain. Each save removes older ones.

    Raises:
        ValueError: `keep` is below 1.
        RuntimeError: Keras does not use the torch backend.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 2) -> None:
        super().__init__()
        if keep < 1:
            raise ValueError(f"keep is {keep}, but one checkpoint is needed to resume from")
        if keras.config.backend() != "torch":
            raise RuntimeError(
                f"the backend is {keras.config.backend()}, but only that of torch can resume in mid-epoch"
            )
        self._directory = Path(directory)
        self._keep = keep
        self._step = 0
        self._epoch = 0
        self._batches = 0
        self._epoch_random = random_state()
        self._is_in_fit = False
        self._skipped = 0  # batches of this epoch that are still to be drawn without training on them
        self._before_validation: dict[str, Any] | None = None  # while a validation is running
        self._repeated: dict[str, Any] | None = None  # what was saved before the validation to be repeated
        self._loaded: dict[str, Any] | None = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' hooks
        """Load the newest checkpoint, if there is one, and start to listen for the supervisor."""
        api.init(rank, world_size=world_size)
        self._is_in_fit = True
        self._loaded = self._load()
        if self._loaded is not None:
            self._step = self._loaded["step"]
            self.model._initial_epoch = self._loaded["epoch"]  # noqa: SLF001 - as BackupAndRestore does
        api.resumed(self._step)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Remember the random generators from before Keras shuffles, or restore them in an epoch that is continued."""
        loaded, self._loaded = self._loaded, None
        self._epoch, self._batches = epoch, 0
        if loaded is None:
            self._epoch_random = random_state()
            return
        self.model._initial_epoch = None  # noqa: SLF001
        self._epoch_random = loaded.get("epoch_random") or random_state()
        set_random_state(self._epoch_random)
        self._skip(loaded)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Finish a step."""
        self._batches = batch + 1
        if self._skipped:
            self._skipped -= 1
        else:
            self._finish_step()

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Remember the state that a stop in this validation saves, because Keras resets the metrics of the training."""
        if not self._is_in_fit:
            return
        if self._repeated is not None:  # the last run was stopped in this validation
            self._restore_random(self._repeated)
            self._repeated = None
        self._before_validation = self._present()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Finish a step, in a validation of `fit`."""
        if self._is_in_fit:
            self._finish_step()

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Forget the state that a stop in this validation would have saved."""
        self._before_validation = None

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Stop counting the batches of later evaluations as steps."""
        self._is_in_fit = False

    def _finish_step(self) -> None:
        self._step += 1
        finish_step(self._step, self._save, is_alone=True)

    def _skip(self, loaded: dict[str, Any]) -> None:
        """Draw the first batches of the epoch without training on them.

        Then restore the state that was saved after them.
        """
        model, train = self.model, self.model.train_function
        self._skipped = left = loaded["batches"]
        self._repeated = loaded if loaded["is_in_validation"] else None
        _assign(model.metrics_variables, loaded["metrics"])

        def draw(data: Any) -> Any:  # noqa: ARG001 - Keras passes the batch
            nonlocal left
            left -= 1
            if left == 0:
                model.train_function = train
                self._restore_random(loaded)
            return model.get_metrics_result()

        model.train_function = draw

    def _restore_random(self, loaded: dict[str, Any]) -> None:
        if "random" in loaded:
            set_random_state(loaded["random"])
            _assign(_seed_variables(self.model), loaded["seeds"])

    def _present(self) -> dict[str, Any]:
        """Return the state that changes with every batch and is not among the model's weights."""
        variables = {"seeds": _seed_variables(self.model), "metrics": self.model.metrics_variables}
        values = {name: [variable.value.detach().clone() for variable in each] for name, each in variables.items()}
        return {"random": random_state(), **values}

    def _save(self, step: int) -> None:
        """Write this rank's checkpoint. It gets its name once it is complete."""
        mine = self._directory / _NAME.format(step) / f"rank-{rank()}"
        draft = mine.with_name(_DRAFT + mine.name)
        for path in (mine, draft):
            shutil.rmtree(path, ignore_errors=True)
        draft.mkdir(parents=True)
        self.model.save_weights(draft / _WEIGHTS)
        position = {
            "step": step,
            "epoch": self._epoch,
            "batches": self._batches,
            "is_in_validation": self._before_validation is not None,
            "epoch_random": self._epoch_random,
        }
        torch.save({**position, **(self._before_validation or self._present())}, draft / _POSITION)
        draft.rename(mine)
        if rank() == 0:
            for old in sorted(self._directory.glob("step-*"))[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)

    def _load(self) -> dict[str, Any] | None:
        """Load the newest checkpoint into the model.

        Return its position; the random state is left out if another rank has saved it.
        """
        newest = max((path.parent for path in self._directory.glob("step-*/rank-0")), default=None)
        if newest is None:
            return None
        mine = newest / f"rank-{rank()}"
        is_mine = mine.exists()
        source = mine if is_mine else newest / "rank-0"
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        self.model.load_weights(source / _WEIGHTS)
        position: dict[str, Any] = torch.load(source / _POSITION, weights_only=True)
        if is_mine:
            return position
        print(f"kubeai: {newest} has no file of rank {rank()}: its random numbers start anew", file=sys.stderr)  # noqa: T201
        return {key: value for key, value in position.items() if key not in _RANDOM}


def rank() -> int:
    """Return the rank of this process: that of torch.distributed, else of the environment, else 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes: that of torch.distributed, else of the environment, else 1."""
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1"))


def _seed_variables(model: Any) -> list[Any]:
    """Return the counters of the layers' seed generators, which are variables but not weights."""
    weights = {id(weight) for weight in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def _assign(variables: list[Any], values: list[torch.Tensor]) -> None:
    for variable, value in zip(variables, values):
        variable.assign(value)
