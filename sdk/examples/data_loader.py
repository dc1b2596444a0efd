"""Worker processes that are forked after init: they see the flag, report nothing, and can be terminated.

python data_loader.py CHECKPOINT
"""

import multiprocessing
import sys
import time
from pathlib import Path
from typing import Iterator

import kubeai.elastic as kubeai


def prepare(number: int) -> int:
    """Make one batch in a worker, unless the flag is down."""
    if kubeai.check_alive():
        time.sleep(0.005)  # one batch
    return number


def endless() -> Iterator[int]:
    """Yield numbers of batches."""
    number = 0
    while True:
        yield number
        number += 1


def main(checkpoint: Path) -> None:
    """Train on batches that two workers prepare."""
    kubeai.init(rank=lambda: 0)
    pool = multiprocessing.get_context("fork").Pool(2)
    print("training", flush=True)
    for number in endless():
        batch = pool.apply(prepare, (number,))
        if not kubeai.check_alive():
            checkpoint.write_text(str(batch))
            kubeai.checkpoint_saved(batch)
            pool.terminate()  # SIGTERM to the workers only
            pool.join()
            sys.exit(-1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
