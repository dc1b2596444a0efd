"""Runs a script as one process of a job, with slower steps, and without the agreement if a test asks.

frameworks_one_process.py SCRIPT ARGUMENT …
"""

import os
import runpy
import sys
import time
from typing import Any

from kubeai.elastic import loop

from tests.frameworks.frameworks_disagreement import disagree


def _slowed(step_seconds: float) -> None:
    finish_step = loop.finish_step

    def slow(*args: Any, **kwargs: Any) -> None:
        time.sleep(step_seconds)  # A step has the duration that the test wants.
        finish_step(*args, **kwargs)

    loop.finish_step = slow


if __name__ == "__main__":
    _slowed(float(os.environ["FRAMEWORKS_STEP_SECONDS"]))
    if "FRAMEWORKS_DISAGREE" in os.environ:
        disagree()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
