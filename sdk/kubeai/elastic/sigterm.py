"""Optional SIGTERM handling: treats SIGTERM as a LEAVE of this process.

Where SIGTERM reaches the training process (torchrun, a process that is a pod's first), it arrives even if the network
to the supervisor is cut. In a round of the rendezvous backend `kubeai`, SIGTERM comes from the elastic agent once the
round is over: nothing can be saved together any more, and a handler could not even run while a collective waits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Callable

from . import elastic_agent

if TYPE_CHECKING:
    from types import FrameType

    from .stderr import StderrLog


class Sigterm:
    """Calls `terminate` on each SIGTERM, then the previous handler."""

    def __init__(self, terminate: Callable[[], None], stderr: StderrLog) -> None:
        self._terminate = terminate
        self._stderr = stderr
        self._pid = 0
        self._previous: Any = None  # from signal.getsignal: a function, SIG_DFL or SIG_IGN
        self._masks: dict[int, set[int]] = {}

    def watch(self) -> None:
        """Install the handler once. Prints one line on stderr if that is not possible."""
        previous = signal.getsignal(signal.SIGTERM)
        if previous == self._handle or elastic_agent.has_round():
            return
        if previous is None:
            self._stderr.once("sigterm", "SIGTERM is not watched: its handler was not installed by Python")
            return
        if threading.current_thread() is not threading.main_thread():
            self._stderr.once("sigterm", "SIGTERM is not watched: call init() in the main thread")
            return
        self._previous = previous
        is_first = not self._pid
        self._pid = os.getpid()
        signal.signal(signal.SIGTERM, self._handle)
        if is_first:
            os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._forked)

    def restore(self) -> None:
        """Restore the previous handler, unless another one was set since or this is not the main thread."""
        if self._pid and signal.getsignal(signal.SIGTERM) == self._handle:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGTERM, self._previous)

    # Python loses a SIGTERM that arrives in the child between the fork and the restored handler (seen when a process is
    # terminated right after its start), and the child would live on. So SIGTERM is blocked during that time.

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
