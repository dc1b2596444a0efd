"""Runs a JAX script as one process of a job, with slower steps, and without the agreement if a test asks.

frameworks_jax_process.py SCRIPT ARGUMENT …
"""

import os
import runpy
import sys
import time
from typing import Any

import kubeai.elastic as kubeai
from kubeai.elastic import api, loop


def _slowed(step_seconds: float) -> None:
    finish_step = loop.finish_step

    def slow(*args: Any, **kwargs: Any) -> None:
        time.sleep(step_seconds)
        finish_step(*args, **kwargs)

    loop.finish_step = slow


def _disagree() -> None:
    """Let each process save and exit as soon as it is told, as without the agreement."""
    told: dict[str, Any] = {"should_stop": lambda _: not api.check_alive(), "should_checkpoint": lambda _: False}
    init = api.init
    told["init"] = lambda *_, **__: init()
    vars(api).update(told)
    vars(kubeai).update(told)


if __name__ == "__main__":
    _slowed(float(os.environ["FRAMEWORKS_STEP_SECONDS"]))
    if "FRAMEWORKS_DISAGREE" in os.environ:
        _disagree()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
