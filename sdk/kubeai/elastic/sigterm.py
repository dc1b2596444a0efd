"""SIGTERM as a second way to learn that this process is to leave, for scripts that ask for it.

Where SIGTERM reaches the training process at all (torchrun, a single process as a pod's first), it comes even when the
network to the supervisor is cut. It is taken for a LEAVE of this process alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from types import FrameType

    from .stderr import StderrLog


class Sigterm:
    """Calls `terminate` at each SIGTERM, then the handler that was there before."""

    def __init__(self, terminate: Callable[[], None], stderr: StderrLog) -> None:
        self._terminate = terminate
        self._stderr = stderr
        self._pid = 0
        self._previous: Any = None  # what signal.getsignal gives: a function, SIG_DFL or SIG_IGN
        self._masks: dict[int, set[int]] = {}

    def watch(self) -> None:
        """Take SIGTERM, once; one line on stderr where that cannot be."""
        previous = signal.getsignal(signal.SIGTERM)
        if previous == self._handle:
            return
        if previous is None:
            self._stderr.once("sigterm", "SIGTERM is not watched: it has a handler that is not Python's")
            return
        if threading.current_thread() is not threading.main_thread():
            self._stderr.once("sigterm", "SIGTERM is not watched: only init() in the main thread can do that")
            return
        self._previous = previous
        is_first = not self._pid
        self._pid = os.getpid()
        signal.signal(signal.SIGTERM, self._handle)
        if is_first:
            os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._forked)

    def restore(self) -> None:
        """Put the handler back that was there before; not over one that was set since, nor in another thread."""
        if self._pid and signal.getsignal(signal.SIGTERM) == self._handle:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGTERM, self._previous)

    # Between a fork and the restored handler Python forgets a SIGTERM that arrives in the child (seen when a process is
    # terminated as soon as it has started): it would live on. So it is blocked for that long.

    def _block(self) -> None:
        self._masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.pop(threading.get_ident(), set()))

    def _forked(self) -> None:
        self.restore()
        self._unblock()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._terminate()
        if callable(self._previous):
            self._previous(number, frame)
