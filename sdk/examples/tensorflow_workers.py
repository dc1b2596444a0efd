"""TensorFlow with Keras: all workers stop at one agreed step, and the chief writes the checkpoint.

TF_CONFIG=… tensorflow_workers.py DIRECTORY [STEPS]   # in each worker, as a TFJob starts it
"""

import sys
from typing import Iterator

import keras
import numpy as np
import tensorflow as tf

import kubeai.elastic as kubeai
from kubeai.elastic.integrations.tensorflow import WorkerCheckpoints

GLOBAL_BATCH = 16
HIDDEN = 32


class MirroredTraining:
    """The model and its optimizer, the same in every worker."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        keras.utils.set_random_seed(0)
        with strategy.scope():
            # All rows have one mask, which does not depend on how the workers divide the batch.
            dropout = keras.layers.Dropout(0.2, noise_shape=(1, HIDDEN), seed=0)
            self.model = keras.Sequential(
                [keras.Input((16,)), keras.layers.Dense(HIDDEN, "tanh"), dropout, keras.layers.Dense(1)]
            )
            self.optimizer = keras.optimizers.Adam(0.001)
            self.optimizer.build(self.model.trainable_variables)
            # Each worker counts its own rows. A save adds them up, for which it needs all workers.
            self.rows = tf.Variable(
                0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

    @tf.function
    def update(self, rows: tf.Tensor) -> tf.Tensor:
        """Train on this worker's rows of a batch. Return the loss of the whole batch."""
        losses = self._strategy.run(self._update, args=(rows,))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def _update(self, rows: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(self.model(rows, training=True) - rows[:, :1])) / GLOBAL_BATCH
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)  # adds them up over the workers
        self.rows.assign_add(tf.shape(rows)[0])
        return loss


def batches_from(worker: int, workers: int, first: int, steps: int) -> Iterator[tf.Tensor]:
    """Yield this worker's rows of the global batches from step `first` on. The same step has the same in every run."""
    for step in range(first, steps):
        batch = np.random.default_rng(step).normal(size=(GLOBAL_BATCH, 16)).astype(np.float32)
        yield tf.constant(batch[worker::workers])


def main(directory: str, steps: int) -> None:
    """Train."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    kubeai.init(collective=True)  # a save needs all workers
    worker, workers = strategy.cluster_resolver.task_id or 0, strategy.num_replicas_in_sync
    training = MirroredTraining(strategy)
    checkpoints = WorkerCheckpoints(strategy, directory, training.model, training.optimizer, rows=training.rows)
    first = checkpoints.load()
    batches = batches_from(worker, workers, first, steps)
    for step, batch in kubeai.steps(batches, checkpoints.save, first=first, every=50):
        loss = float(training.update(batch))
        sys.stdout.write(f"rank {worker} step {step} loss {loss.hex()}\n")
        sys.stdout.flush()
    checkpoints.save(steps)
    sys.stdout.write(f"trained on {training.rows.numpy()} rows\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
