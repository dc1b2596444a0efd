"""The background threads of the library and its commands, and the lines that they write on stderr.

No thread ends in silence. An exception that nobody foresaw is printed once, with its traceback. The thread then goes
on, after a pause that grows while it fails again. Where a thread serves several peers or messages, `attempt` keeps the
fault of one of them from the others.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_STDERR = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_HEALTHY_SECONDS = 60.0  # a thread that has run for so long fails anew


@dataclass(eq=False)
class StderrLog:
    """Writes single lines to the file descriptor of stderr, each at most once per process.

    sys.stderr has a lock, and a logging handler has another. A thread of the library that held one while the training
    process forks or exits would hang it.
    """

    sender: Callable[[], str] = str
    """Names this process at the end of each line: the ranks of a job often share one log."""
    _first: dict[str, object] = field(default_factory=dict)

    def once(self, topic: str, text: str) -> None:
        """Write a line unless one was written for this topic before."""
        mine = object()
        if self._first.setdefault(topic, mine) is mine:  # setdefault is atomic: several threads may write at once
            sender = self.sender()
            line = f"kubeai.elastic: {text}{f' ({sender})' if sender else ''}\n".encode(errors="replace")
            with contextlib.suppress(OSError):
                os.write(_STDERR, line)

    def fault(self, where: str, error: BaseException) -> None:
        """Write an exception that nobody foresaw, with its traceback, once for each type and place."""
        import traceback  # noqa: PLC0415 - it is seldom needed, and imports the tokenizer

        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
        self.once(f"fault {where} {type(error).__name__}", f"an internal error in {where}, please report it:\n{lines}")


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

    def keep_running() -> None:
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

    thread = threading.Thread(target=keep_running, name=name, daemon=True)
    thread.start()
    return thread
