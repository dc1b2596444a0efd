"""Checkpoints of JAX training that Orbax's CheckpointManager writes: all processes save at one agreed step.

    from kubeai.elastic.integrations.orbax import OrbaxCheckpoints

    kubeai.init(collective=True)  # after jax.distributed.initialize
    checkpoints = OrbaxCheckpoints(manager)
    first, state = checkpoints.load(state)
    for step, batch in kubeai.steps(batches_from(first), lambda step: checkpoints.save(step, state), first=first):
        state = update(state, batch)
        if (step + 1) % 1000 == 0:
            checkpoints.save_in_background(step + 1, state)

Orbax renames a checkpoint to its name only once all processes have written their parts, and loads no other.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp

from .background import BackgroundSave

State = TypeVar("State")


class OrbaxCheckpoints:
    """Saves and loads one pytree of arrays with the user's CheckpointManager, and reports saves in the background.

    Every process calls each method, at the same step. The agreed step replaces the preemption handling of JAX and
    Orbax: these saves ask neither the manager's `save_interval_steps` nor its preemption sync point. `max_to_keep`
    applies.

    Args:
        manager: For a single item. It may write asynchronously.
    """

    def __init__(self, manager: ocp.CheckpointManager) -> None:
        self._manager = manager
        self._background = BackgroundSave()

    def load(self, state: State) -> tuple[int, State]:
        """Load the newest complete checkpoint.

        Args:
            state: A new state. Each of its arrays gives shape, type and sharding, which may be of another number of
                processes than the one that saved.

        Returns:
            The number of finished steps and the loaded state; 0 and `state` itself if there is no checkpoint.
        """
        step = self._manager.latest_step()
        if step is None:
            return 0, state
        wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        return step, self._manager.restore(step, args=ocp.args.StandardRestore(wanted))

    def save(self, step: int, state: Any) -> None:
        """Write a checkpoint after `step` finished steps. Returns when it is complete, in every process.

        A save in the background is finished and reported with its own step before. Does nothing more if there is a
        checkpoint of this step already. The caller reports this one: `kubeai.steps` does.

        Raises:
            Exception: Whatever Orbax raises if this save fails. The failure of an earlier one is reported, not raised.
                Where one process fails, Orbax may wait for the others in a barrier instead of raising.
        """
        self._background.finish()
        if step not in self._manager.all_steps():
            self._start(step, state)
            self._wait()

    def save_in_background(self, step: int, state: Any) -> None:
        """Start to write a checkpoint after `step` finished steps, while training goes on.

        It is reported once it is complete: by the next call of `save`, of this method, or of `close`. If the manager is
        not asynchronous, this returns only when the checkpoint is complete.

        Raises:
            Exception: Whatever Orbax raises if this save cannot be started.
        """
        self._background.finish()
        if step not in self._manager.all_steps():
            self._start(step, state)
            self._background.begin(step, self._wait)

    def close(self) -> None:
        """Finish and report a save in the background, and close the manager."""
        self._background.finish()
        self._manager.close()

    def _start(self, step: int, state: Any) -> None:
        # Without `force` the manager would ask its own policy, and with it JAX's preemption sync point.
        if not self._manager.save(step, args=ocp.args.StandardSave(state), force=True):
            raise RuntimeError(f"Orbax has not saved step {step}")

    def _wait(self) -> None:
        self._manager.wait_until_finished()
        self._manager.check_for_errors()
