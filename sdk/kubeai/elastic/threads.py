"""The background threads of the library and its commands. None of them ends in silence.

An exception that nobody foresaw is printed once, with its traceback. The thread then goes on, after a pause that
grows while it fails again. Where a thread serves several peers or messages, `attempt` keeps the fault of one of them
from the others.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .stderr import StderrLog

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_HEALTHY_SECONDS = 60.0  # a thread that has run for so long fails anew


def attempt(where: str, stderr: StderrLog, action: Callable[[], object]) -> bool:
    """Carry out an action and return whether it ended without an unforeseen exception, which is printed once."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - a bug of ours may cost a warning, never the training
        stderr.fault(where, error)
        return False
    return True


def start(
    name: str, run: Callable[[], object], stderr: StderrLog, *, closed: threading.Event | None = None
) -> threading.Thread:
    """Start a daemon thread that ends when `run` returns; after an unforeseen exception, `run` is called again.

    Args:
        name: Of the thread; it also says in the printed line where the fault is.
        run: What the thread does.
        stderr: Where a fault is printed.
        closed: Once it is set, `run` is not called again.

    Raises:
        RuntimeError: The interpreter is exiting, or there are no threads left.
    """
    thread = threading.Thread(target=_keep_running, args=(name, run, stderr, closed), name=name, daemon=True)
    thread.start()
    return thread


def _keep_running(
    name: str, run: Callable[[], object], stderr: StderrLog, closed: threading.Event | None = None
) -> None:
    pause = _FIRST_PAUSE
    while True:
        begun = time.monotonic()
        if attempt(name, stderr, run):
            return
        if time.monotonic() > begun + _HEALTHY_SECONDS:
            pause = _FIRST_PAUSE
        if closed is None:
            time.sleep(pause)
        elif closed.wait(pause):
            return
        pause = min(2 * pause, _LONGEST_PAUSE)
