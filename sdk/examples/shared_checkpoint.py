"""A single process whose checkpoint other clusters share, so that the job can be moved there.

    python shared_checkpoint.py CHECKPOINT [STEPS]

Start it twice: the second one waits until the first one has ended, and continues from its checkpoint.
"""

import json
import os
import sys
import time
from pathlib import Path

import kubeai.elastic as kubeai


def load(checkpoint: Path) -> int:
    """Return the number of finished steps in the checkpoint, 0 without one."""
    return int(json.loads(checkpoint.read_text())["step"]) if checkpoint.exists() else 0


def main(checkpoint: Path, steps: int) -> None:
    """Train."""
    kubeai.init(rank=0, sigterm=True)  # a single process is rank 0, which the SDK cannot know
    lease = kubeai.checkpoint_lease(checkpoint.parent)  # in rank 0 alone, before it loads
    first = load(checkpoint)
    print("from step", first, flush=True)

    def save(step: int) -> None:
        draft = checkpoint.with_suffix(".draft")
        draft.write_text(json.dumps({"step": step}))
        lease.check()  # as late as possible: another run may train by now
        os.replace(draft, checkpoint)  # noqa: PTH105 - as most training scripts do

    for _step, _batch in kubeai.steps(range(first, steps), save, first=first):
        time.sleep(0.01)  # one step
    save(steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
