"""Stops and resumes TorchTitan: all ranks write one checkpoint at an agreed step.

    from kubeai.elastic.integrations.torchtitan import AgreedCheckpoints

    Trainer.Config(checkpoint=AgreedCheckpoints.Config(interval=500, async_mode="async"), ...)

Only the checkpoint configuration changes: TorchTitan's own trainer calls its checkpoint manager after each step. The
checkpoints are those of TorchTitan, and it loads the newest complete one itself. It saves no state of random number
generators.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torchtitan.components.checkpointer import TRAIN_STATE, AsyncMode, CheckpointManager

from kubeai.elastic import api
from kubeai.elastic.loop import finish_step

from .background import BackgroundSave
from .torch import plain_errors

if TYPE_CHECKING:
    from concurrent.futures import Future


class AgreedCheckpoints(CheckpointManager):  # type: ignore[misc]  # TorchTitan is not installed where types are checked.
    """TorchTitan's checkpoint manager, which also saves and exits, or goes on, at the step that all ranks agreed on.

    The steps that it counts are TorchTitan's. A stop during a validation waits for its end. After the last step there
    is no stop: the last checkpoint may hold the model alone, and the training is over.

    A save that nobody asked for runs in the background if `async_mode` says so, and is reported when TorchTitan waits
    for it, or at a stop. The one of a stop never does. The process ends by SystemExit with a non-zero code out of
    `Trainer.train`.
    """

    @dataclass(kw_only=True, slots=True)  # novm: TorchTitan asks for both, and for Python 3.11
    class Config(CheckpointManager.Config):  # type: ignore[misc]
        """The configuration of TorchTitan's manager.

        Attributes:
            enable: Whether there are checkpoints, and with them stops.
        """

        enable: bool = True

        def __post_init__(self) -> None:
            """Check the values.

            Raises:
                ValueError: `load_only` forbids the checkpoints from which a stopped run would resume.
            """
            CheckpointManager.Config.__post_init__(self)
            if self.load_only:
                raise ValueError("load_only forbids the checkpoints from which a stopped run would resume")

    save_future: Any  # of TorchTitan's: None, or a Future once a save is begun

    def __init__(self, config: Config, **components: Any) -> None:
        self._background = BackgroundSave()
        self._complete = -1  # the step of the newest complete checkpoint of this process
        super().__init__(config, **components)

    def _load(self, step: int = -1) -> bool:
        """Start to listen for the supervisor, load as TorchTitan does, and report the step at which this run starts."""
        api.init(dist.get_rank, collective=True, world_size=dist.get_world_size)
        is_loaded = bool(super()._load(step))
        api.resumed(self.states[TRAIN_STATE].step)
        return is_loaded

    def _save(self, curr_step: int, last_step: bool = False) -> bool:  # noqa: FBT001, FBT002 - TorchTitan's signature
        """Save if TorchTitan's configuration says so, or if the supervisor asks for it. Exit at an agreed step."""
        if last_step:
            return bool(super()._save(curr_step, last_step))
        is_due = self._should_save(curr_step)
        is_in_background = is_due and self.async_mode is not AsyncMode.DISABLED
        if is_in_background:
            super()._save(curr_step)
            self._background.begin(curr_step, partial(self._wait, self.save_future, curr_step))
        finish_step(curr_step, self._write, is_due=is_due and not is_in_background)
        return is_in_background or self._complete == curr_step

    def _wait_for_saving(self) -> None:
        """Wait for the save in the background. Its failure is reported, and does not prevent the save that follows."""
        self.save_future = None
        self._background.finish()

    def _wait(self, saved: Future[Any], step: int) -> None:
        with plain_errors():
            saved.result()
        self._complete = step

    def _write(self, step: int) -> None:
        """Write the whole state, unless it was written in the background after this very step."""
        self.maybe_wait_for_saving()
        if self._complete == step:
            return
        with plain_errors():
            self.dcp_save(
                self._flattened_model_states_sd(),
                checkpoint_id=self._create_checkpoint_id(step),
                async_mode=AsyncMode.DISABLED,
                enable_garbage_collection=True,
            )
        self._complete = step
        self._purge_stale_checkpoints()
