"""Fits a line by gradient descent, saves when that is asked for, and continues from there.

python train.py CHECKPOINT [STEPS]

It needs no library, so that its image is small: each process fits the same line by itself, and rank 0 saves. How a job
goes through a reclaim is the same for a script with a framework.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import kubeai.elastic as kubeai

_STEP_SECONDS = 0.05


def load(checkpoint: Path) -> dict[str, float]:
    """Return the model, and in `step` the number of finished steps: 0 without a checkpoint."""
    if not checkpoint.exists():
        return {"step": 0, "slope": 0.0, "offset": 0.0}
    saved: dict[str, float] = json.loads(checkpoint.read_text())
    return saved


def train(model: dict[str, float], step: int) -> float:
    """Make one step, whose data follow from its number, and return the loss."""
    x = random.Random(step).uniform(-1, 1)  # noqa: S311 - data, no secret
    error = model["slope"] * x + model["offset"] - (3 * x + 1)
    model["slope"] -= 0.01 * error * x
    model["offset"] -= 0.01 * error
    return error * error


def main(checkpoint: Path, steps: int) -> None:
    """Train."""
    kubeai.init()
    rank, model = int(os.environ["RANK"]), load(checkpoint)
    first = int(model["step"])
    print(f"rank {rank}: starts at step {first}")

    def save(step: int) -> None:
        if rank != 0:
            return
        draft = checkpoint.with_suffix(".draft")
        draft.write_text(json.dumps({**model, "step": step}))
        draft.replace(checkpoint)  # A kill leaves the old checkpoint.
        print(f"rank 0: saved after step {step}")

    for step, _ in kubeai.steps(range(first, steps), save, first=first):
        loss = train(model, step)
        time.sleep(_STEP_SECONDS)  # Such a step takes no time: this one leaves people some to look.
        if step % 100 == 0:
            print(f"rank {rank}: step {step}, loss {loss:.4f}")
    save(steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
