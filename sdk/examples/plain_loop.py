"""A single process: saves where it stands when it is told to, and goes on from there when it is started again.

python plain_loop.py CHECKPOINT [STEPS]
"""

import json
import os
import sys
import time
from pathlib import Path

import kubeai.elastic as kubeai


def load(checkpoint: Path) -> int:
    """The last step that was saved, 0 at first."""
    return int(json.loads(checkpoint.read_text())["step"]) if checkpoint.exists() else 0


def save(checkpoint: Path, step: int) -> None:
    """Write beside it and rename, so that a kill in the middle leaves the old one."""
    draft = checkpoint.with_suffix(".draft")
    draft.write_text(json.dumps({"step": step}))
    os.replace(draft, checkpoint)  # noqa: PTH105 - as most training scripts do
    kubeai.checkpoint_saved(step)


def main(checkpoint: Path, steps: int) -> None:
    """Train."""
    kubeai.init(rank=lambda: 0, sigterm=True)  # a single process is its own rank 0, and nobody else can know that
    step = load(checkpoint)
    print("from step", step, flush=True)
    while step < steps:
        if not kubeai.check_alive():
            save(checkpoint, step)
            sys.exit(-1)  # never 0: that would say that the training is done
        if kubeai.should_checkpoint():
            save(checkpoint, step)
        time.sleep(0.01)  # one step
        step += 1
    save(checkpoint, step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
