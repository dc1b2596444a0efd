"""A single process that saves when it is told to, and continues from there after a restart.

python plain_loop.py CHECKPOINT [STEPS]
"""

import functools
import json
import os
import sys
import time
from pathlib import Path

import kubeai.elastic as kubeai


def load(checkpoint: Path) -> int:
    """Return the number of finished steps in the checkpoint, 0 without one."""
    return int(json.loads(checkpoint.read_text())["step"]) if checkpoint.exists() else 0


def save(checkpoint: Path, step: int) -> None:
    """Write to a draft and rename it, so that a kill leaves the old checkpoint."""
    draft = checkpoint.with_suffix(".draft")
    draft.write_text(json.dumps({"step": step}))
    os.replace(draft, checkpoint)  # noqa: PTH105 - as most training scripts do


def main(checkpoint: Path, steps: int) -> None:
    """Train."""
    kubeai.init(rank=0, sigterm=True)  # a single process is rank 0, which the SDK cannot know
    first = load(checkpoint)
    print("from step", first, flush=True)
    batches = range(first, steps)
    for _step, _batch in kubeai.steps(batches, functools.partial(save, checkpoint), first=first):
        time.sleep(0.01)  # one step
    save(checkpoint, steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
