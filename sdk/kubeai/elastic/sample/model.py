"""A linear model with mean squared error, in plain Python, and its checkpoint."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, Sequence

if TYPE_CHECKING:
    from pathlib import Path

_TARGET = (2.0, -3.0, 0.5, 1.5, -1.0, 4.0, 0.0, -2.5)
_NOISE = 0.1
_BATCH = 32
_RATE = 0.05


@dataclass(frozen=True)
class State:
    """The parameters after a number of training steps."""

    step: int
    parameters: tuple[float, ...]

    def fields(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"step": self.step, "parameters": list(self.parameters)}


@dataclass(frozen=True)
class Gradient:
    """The mean gradient and loss of one batch."""

    values: tuple[float, ...]
    loss: float


FIRST = State(0, (0.0,) * len(_TARGET))


def state_of(fields: Mapping[str, Any]) -> State:
    """Return the state that ``State.fields`` has encoded."""
    return State(int(fields["step"]), tuple(float(value) for value in fields["parameters"]))


def gradient(state: State, rank: int) -> Gradient:
    """Compute the gradient of a batch that only this rank draws at this step."""
    draw = random.Random(f"{state.step} {rank}")  # noqa: S311 - training data, not a secret.
    sums, loss = [0.0] * len(_TARGET), 0.0
    for _ in range(_BATCH):
        features = [draw.gauss(0, 1) for _ in _TARGET]
        label = _dot(features, _TARGET) + draw.gauss(0, _NOISE)
        error = _dot(features, state.parameters) - label
        loss += error * error / _BATCH
        sums = [total + 2 * error * feature / _BATCH for total, feature in zip(sums, features)]
    return Gradient(tuple(sums), loss)


def advanced(state: State, gradients: Sequence[Gradient]) -> State:
    """Return the state after one step along the mean of the gradients."""
    means = [sum(column) / len(gradients) for column in zip(*(one.values for one in gradients))]
    return State(state.step + 1, tuple(value - _RATE * mean for value, mean in zip(state.parameters, means)))


def save(path: Path, state: State) -> None:
    """Write a draft and rename it, so that a kill leaves the old checkpoint."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(state.fields(), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def load(path: Path) -> State:
    """Return the state in the checkpoint; the first state if there is no checkpoint."""
    if not path.exists():
        return FIRST
    return state_of(json.loads(path.read_text(encoding="utf-8")))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(left, right))
