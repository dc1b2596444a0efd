"""Worker processes that are forked after init: they see the flag, report nothing, and can be terminated.

python data_loader.py CHECKPOINT
"""

import functools
import itertools
import multiprocessing
import sys
import time
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Iterator

import kubeai.elastic as kubeai


def prepare(number: int) -> int:
    """Make one batch in a worker, unless the flag is down."""
    if kubeai.check_alive():
        time.sleep(0.005)  # one batch
    return number


def batches(pool: Pool) -> Iterator[int]:
    """Yield what the workers have prepared."""
    for number in itertools.count():
        yield pool.apply(prepare, (number,))


def save(checkpoint: Path, step: int) -> None:
    """Write to a draft and rename it, so that a kill leaves the old checkpoint."""
    draft = checkpoint.with_suffix(".draft")
    draft.write_text(str(step))
    draft.replace(checkpoint)


def main(checkpoint: Path) -> None:
    """Train on batches that two workers prepare."""
    kubeai.init(rank=0)
    with multiprocessing.get_context("fork").Pool(2) as pool:  # its end sends SIGTERM to the workers only
        print("training", flush=True)
        for _step, _batch in kubeai.steps(batches(pool), functools.partial(save, checkpoint)):
            pass  # one step


if __name__ == "__main__":
    main(Path(sys.argv[1]))
