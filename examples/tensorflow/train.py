"""A Keras model under MultiWorkerMirroredStrategy, with a loop of its own. The lines that are kubeai's are marked.

train.py DIRECTORY [STEPS], in each worker of a TFJob, which sets TF_CONFIG
"""

import sys
import time
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

import kubeai.elastic as kubeai  # kubeai
from kubeai.elastic.integrations.tensorflow import WorkerCheckpoints  # kubeai

_GLOBAL_BATCH = 24
_STEP_SECONDS = 0.05


class Regression:
    """The model and its optimizer, the same in every worker."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        keras.utils.set_random_seed(0)
        self._strategy = strategy
        with strategy.scope():
            self.model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.Adam(0.001)
            self.optimizer.build(self.model.trainable_variables)

    @tf.function
    def update(self, rows: tf.Tensor) -> tf.Tensor:
        """Train on this worker's rows of a batch. Return the loss of the whole batch."""
        losses = self._strategy.run(self._update, args=(rows,))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def _update(self, rows: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(self.model(rows, training=True))) / _GLOBAL_BATCH
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)  # adds them up over the workers
        return loss


def batches_from(first: int, steps: int, worker: int, workers: int) -> Iterator[tf.Tensor]:
    """Yield this worker's rows of each batch from step `first` on. A step has the same batch in every run."""
    for step in range(first, steps):
        batch = np.random.default_rng(step).normal(size=(_GLOBAL_BATCH, 16)).astype(np.float32)
        yield tf.constant(batch[worker::workers])


def main(directory: str, steps: int) -> None:
    """Train."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    worker, workers = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
    kubeai.init(collective=True)  # kubeai: a save needs all workers
    training = Regression(strategy)
    checkpoints = WorkerCheckpoints(strategy, directory, training.model, training.optimizer)  # kubeai
    first = checkpoints.load()
    if worker == 0:
        print(f"{workers} ranks, starts at step {first}", flush=True)
    batches = batches_from(first, steps, worker, workers)
    for step, batch in kubeai.steps(batches, checkpoints.save, first=first, every=1000):  # kubeai
        loss = float(training.update(batch))
        time.sleep(_STEP_SECONDS)  # Such a step takes no time: this one leaves people some to look.
        if worker == 0 and step % 20 == 0:
            print(f"{workers} ranks, step {step}, loss {loss:.4f}", flush=True)
    checkpoints.save(steps)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
