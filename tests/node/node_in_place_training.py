"""The training script of a JobSet's pods, which fails when it is told to.

python node_in_place_training.py DIRECTORY: each process counts its steps from 1, and appends a line with the number and
the time of each to `steps-INDEX`. It fails if there is a file `fail-INDEX`, which it renames to `failed-INDEX`.
"""

import os
import sys
import time
from pathlib import Path


def main(directory: Path, index: int) -> None:
    fail, step = directory / f"fail-{index}", 0
    with (directory / f"steps-{index}").open("a", encoding="ascii") as steps:
        while not fail.exists():
            time.sleep(0.02)  # It stands for the work of a step.
            step += 1
            steps.write(f"{step} {time.time()}\n")
            steps.flush()
    fail.rename(directory / f"failed-{index}")
    sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ["JOB_COMPLETION_INDEX"]))
