"""A small network on generated data whose result does not depend on the number of workers.

A global batch is a fixed number of shards, and the gradient of each is in fixed point. The sum over shards is therefore
a sum of integers, exact in any order and on any number of processes. The inputs of matrix products are rounded to fixed
point as well. Floats that hold small integers multiply and add exactly, so the bits do not depend on the linear algebra
library, whose kernels add in different orders (OPENBLAS_CORETYPE alone changed the result).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Params = NDArray[np.float64]
"""All parameters, flat: weights and biases of two layers."""

_INPUTS, _HIDDEN, _OUTPUTS = 16, 24, 4
_SHAPES = ((_INPUTS, _HIDDEN), (_HIDDEN,), (_HIDDEN, _OUTPUTS), (_OUTPUTS,))
_SHARD_SAMPLES = 16
_BATCHES = 8
"""Global batches in the data set, which is repeated."""
_RATE = 0.05
_GRID = 2.0**12
"""Factors have 12 binary places: values up to 2**10 have products of 44 bits, and a float is exact up to 53."""
_SCALE = _GRID * _GRID
"""Binary places of a product and thus of a gradient."""


@dataclass(frozen=True)
class Task:
    """The training task. Equal seed and shards mean equal data, initial parameters and result."""

    seed: int
    shards: int
    """Shards in a global batch; at least the maximum number of workers."""

    def first_params(self) -> Params:
        return _random_params(np.random.default_rng([self.seed, 1]))

    def gradient(self, params: Params, step: int, shards: range) -> NDArray[np.int64]:
        """Return the summed fixed-point gradient of some shards of a step's batch. Steps count from 1."""
        if not shards:
            return np.zeros(params.size, dtype=np.int64)
        inputs, targets = self._samples(step, shards)
        w1, b1, w2, b2 = _unpack(_rounded(params))
        hidden = _rounded(np.maximum(inputs @ w1 + b1, 0.0))
        error = _rounded(hidden @ w2 + b2 - targets)
        back = _rounded(error @ w2.T) * (hidden > 0.0)
        layers = (inputs.transpose(0, 2, 1) @ back, back.sum(1), hidden.transpose(0, 2, 1) @ error, error.sum(1))
        flat = np.concatenate([layer.reshape(len(shards), -1) for layer in layers], axis=1)
        fixed: NDArray[np.int64] = (flat * _SCALE).astype(np.int64).sum(axis=0)
        return fixed

    def updated(self, params: Params, gradient: NDArray[np.int64]) -> Params:
        """Return the parameters after a step. `gradient` is summed over all shards of the batch."""
        return params - gradient * (_RATE / _SCALE / (self.shards * _SHARD_SAMPLES))

    def loss(self, params: Params, step: int = 1) -> float:
        """Return the mean squared error on the batch of one step."""
        inputs, targets = self._samples(step, range(self.shards))
        w1, b1, w2, b2 = _unpack(params)
        return float(np.mean((np.maximum(inputs @ w1 + b1, 0.0) @ w2 + b2 - targets) ** 2))

    def _samples(self, step: int, shards: range) -> tuple[Params, Params]:
        inputs, targets = self._data
        first = ((step - 1) % _BATCHES) * self.shards
        chosen = slice(first + shards.start, first + shards.stop)
        return inputs[chosen], targets[chosen]

    @cached_property
    def _data(self) -> tuple[Params, Params]:
        random = np.random.default_rng([self.seed, 2])
        inputs = _rounded(random.standard_normal((_BATCHES * self.shards, _SHARD_SAMPLES, _INPUTS)))
        w1, b1, w2, b2 = _unpack(_rounded(_random_params(random)))
        return inputs, _rounded(_rounded(np.maximum(inputs @ w1 + b1, 0.0)) @ w2 + b2)


def shards_of(rank: int, size: int, shards: int) -> range:
    """Return the shards that a rank computes. Each shard belongs to exactly one rank, as evenly as possible."""
    return range(rank * shards // size, (rank + 1) * shards // size)


def digest(params: Params, step: int) -> str:
    """Return a hash of parameters and step."""
    return hashlib.blake2b(step.to_bytes(8, "big") + params.tobytes(), digest_size=8).hexdigest()


def reference(steps: int, seed: int = 1, shards: int = 48) -> str:
    """Return the digest after an uninterrupted run, computed in this process (about 0.2 ms per step)."""
    task = Task(seed, shards)
    params = task.first_params()
    for step in range(1, steps + 1):
        params = task.updated(params, task.gradient(params, step, range(shards)))
    return digest(params, steps)


def _random_params(random: np.random.Generator) -> Params:
    # Scaled by the number of inputs, so that the output of every layer has about the size of its input.
    parts = [random.standard_normal(shape) / np.sqrt(shape[0]) for shape in _SHAPES]
    return np.concatenate([part.ravel() for part in parts])


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.rint(values * _GRID) / _GRID


def _unpack(params: Params) -> tuple[Params, Params, Params, Params]:
    ends = np.cumsum([int(np.prod(shape)) for shape in _SHAPES])
    w1, b1, w2, b2 = np.split(params, ends[:-1])
    return w1.reshape(_SHAPES[0]), b1, w2.reshape(_SHAPES[2]), b2
