"""Keras 3 on the torch backend, one process per rank, with dropout, shuffling and a validation after each epoch.

KERAS_BACKEND=torch torchrun --nproc-per-node 4 keras_fit.py CHECKPOINTS [EPOCHS]

`fit` of the torch backend knows no other processes, so the script averages the gradients of all ranks itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
import torch
import torch.distributed as dist

from kubeai.elastic.integrations.keras import AgreedStop


def regression() -> keras.Model:
    """Return a model that learns the sum of its inputs."""
    layers = [keras.layers.Input((16,)), keras.layers.Dense(32), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.AdamW(0.01), "mse")
    return model


def average_gradients(model: keras.Model) -> None:
    """Let every gradient be the mean of all ranks' as soon as it is computed, and start from rank 0's weights."""

    def average(parameter: torch.Tensor) -> None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    for weight in model.trainable_weights:
        dist.broadcast(weight.value.data, src=0)
        weight.value.register_post_accumulate_grad_hook(average)


def samples(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return as many samples, the same in every run."""
    inputs = np.random.default_rng(seed).standard_normal((number, 16), dtype="float32")
    return inputs, inputs.sum(axis=1, keepdims=True)


def main(checkpoints: Path, epochs: int) -> None:
    """Train: an epoch has 30 batches for each rank, and its validation 5."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    keras.utils.set_random_seed(rank)
    model = regression()
    average_gradients(model)
    model.fit(
        *samples(240, seed=rank),  # this rank's share of the data
        batch_size=8,
        epochs=epochs,
        validation_data=samples(40, seed=1_000),
        verbose=0,
        callbacks=[AgreedStop(checkpoints)],  # saves and exits when the supervisor asks for it, and resumes
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000)
