"""Checkpoints of Keras 3 under TensorFlow's MultiWorkerMirroredStrategy: all workers save at one agreed step.

    from kubeai.elastic.integrations.tensorflow import WorkerCheckpoints

    kubeai.init(collective=True)  # TF_CONFIG gives the rank
    checkpoints = WorkerCheckpoints(strategy, "/checkpoints/resnet", model, optimizer)
    first = checkpoints.load()
    for step, batch in kubeai.steps(batches_from(first), checkpoints.save, first=first):
        update(batch)

The chief writes the checkpoint. TensorFlow has the other workers write, too, because it adds some variables up over all
workers for a save; each does so in a directory of its own, which it removes.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, TypeVar

import tensorflow as tf

if TYPE_CHECKING:
    import os

    import keras

Done = TypeVar("Done")

_NAME = "step"


class WorkerCheckpoints:
    """Saves and loads a model, its optimizer, and the counters from which its dropout draws.

    TensorFlow's own checkpoint of a Keras model has no such counters. Every worker calls each method, at the same step,
    outside `strategy.scope()` and `strategy.run`.

    Args:
        strategy: MultiWorkerMirroredStrategy.
        directory: Of the checkpoints, on a file system that all workers share.
        model: Made, with its variables, in the scope of the strategy.
        optimizer: Built, in the scope of the strategy.
        keep: How many checkpoints remain. Each save removes older ones.
        others: What else to save, by name: whatever tf.train.Checkpoint takes, such as a tf.random.Generator.

    Raises:
        ValueError: `keep` is below 1.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        directory: str | os.PathLike[str],
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *,
        keep: int = 2,
        **others: Any,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, but one checkpoint is needed to resume from")
        self._strategy = strategy
        self._directory = Path(directory)
        self._keep = keep
        self._newest: int | None = None  # finished steps in the checkpoint that was loaded or saved last
        self._saved = tf.train.Checkpoint(model=model, optimizer=optimizer, seeds=_seed_variables(model), **others)
        self._add = tf.function(self._added)  # much cheaper than without a graph, as TensorFlow warns

    def load(self) -> int:
        """Load the newest complete checkpoint, which may be of another number of workers.

        Returns:
            The number of finished steps, 0 if there is no checkpoint.

        Raises:
            AssertionError: The checkpoint lacks something that is to be loaded, as that of another model does.
        """
        newest = tf.train.latest_checkpoint(str(self._directory))
        if newest is None:
            return 0
        self._saved.read(newest).assert_existing_objects_matched()
        self._newest = int(newest.rpartition("-")[2])
        return self._newest

    def save(self, step: int) -> None:
        """Write a checkpoint after `step` finished steps. Returns when it is complete, in every worker.

        Does nothing if that one was loaded or saved last. TensorFlow names the newest checkpoint only once its
        files are complete, so a kill leaves the one before. The caller reports it: `kubeai.steps` does.

        Raises:
            Exception: Whatever TensorFlow raises if this worker cannot write.
            RuntimeError: Another worker cannot write.
        """
        if step == self._newest:
            return
        with contextlib.ExitStack() as cleanup:
            # First, because a worker that has begun to save waits for the others to add variables up.
            manager = self._by_all(step, lambda: self._manager(cleanup))
            self._by_all(step, lambda: manager.save(step))
        self._newest = step

    def _manager(self, cleanup: contextlib.ExitStack) -> tf.train.CheckpointManager:
        directory = str(self._directory)
        if not self._strategy.extended.should_checkpoint:
            directory = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="kubeai-"))
        return tf.train.CheckpointManager(self._saved, directory, self._keep, checkpoint_name=_NAME)

    def _by_all(self, step: int, act: Callable[[], Done]) -> Done:
        """Act in every worker. Return the result of this one; raise in all if one of them fails."""
        done: list[Done] = []
        failure: Exception | None = None
        try:
            done.append(act())
        except Exception as error:  # noqa: BLE001 - raised once the other workers know
            failure = error
        try:
            failed = int(self._add(tf.constant(0 if failure is None else 1)))
        finally:
            if failure is not None:  # the cause, even if another worker knows of it and has gone
                raise failure
        if failed:
            raise RuntimeError(f"{failed} other workers could not save step {step}")
        return done[0]

    def _added(self, number: tf.Tensor) -> tf.Tensor:
        """Return the sum of the numbers of all workers, after all have called this."""
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, self._strategy.run(tf.identity, (number,)), axis=None)


def _seed_variables(model: keras.Model) -> list[tf.Variable]:
    """Return the counters of the layers' seed generators, which are variables but not weights."""
    weights = {id(weight) for weight in model.weights}
    return [variable.value for variable in model.variables if id(variable) not in weights]
