"""Handles SIGTERM and failed collectives in the processes that an elastic agent of torchrun starts.

The agent is one with the backend `kubeai`. Such a process waits for its agent before it exits, because the launcher
would take its exit for a failure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Iterator

from . import threads, wire

if TYPE_CHECKING:
    from types import TracebackType

    from .threads import StderrLog

_ROUND = "KUBEAI_RENDEZVOUS_ROUND"
HOLD_SECONDS = 60.0
"""How long a process waits for its elastic agent after an agreed step, at least."""
FAILURE_SECONDS = 10.0
"""How long it waits after a collective has failed: a lost member is known after 3 s."""

_BLOCKED_SECONDS = 3.0  # the main thread is blocked if it executes nothing for so long
_EXIT_CODE = 128 + signal.SIGTERM
_NO_DESCRIPTOR = -1

# torch.distributed raises a RuntimeError for gloo.
_COLLECTIVE_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")
_COLLECTIVE_WORDS = ("gloo", "nccl")

_is_deferring = False
"""Whether SIGTERM waits."""

failed_in_collective = False
"""Whether this process exits because a collective has failed."""


def has_round() -> bool:
    """Return whether an elastic agent has started this process in a round of the backend `kubeai`."""
    return bool(os.environ.get(_ROUND))


def watch_failures() -> None:
    """Record an uncaught error of a collective from now on. Does nothing in a process without a round."""
    if not has_round():
        return
    before = sys.excepthook

    def noted(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        global failed_in_collective  # noqa: PLW0603 - the exit hook has nothing else of this process to look at
        failed_in_collective = is_of_collective(error)
        before(kind, error, traceback)

    sys.excepthook = noted


def is_of_collective(error: BaseException) -> bool:
    """Return whether an exception says that a collective has failed, such as after the loss of another process."""
    if type(error).__name__ in _COLLECTIVE_ERRORS:
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in _COLLECTIVE_WORDS)


def obey_sigterm() -> None:
    """Let SIGTERM end the process at once, even if the script has a handler: the process has saved and only waits."""
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(ValueError, OSError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def can_defer_sigterm() -> bool:
    """Return whether this is the main thread, and whatever SIGTERM does was not installed by C code."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGTERM) is not None


@contextlib.contextmanager
def deferring_sigterm() -> Iterator[None]:
    """Let a SIGTERM wait until the block has ended, in which other processes need this one.

    Its agent sends it as soon as the process is part of no round, and kills it 30 s later. Call it where
    `can_defer_sigterm` says so.
    """
    global _is_deferring  # noqa: PLW0603 - a signal's disposition is one for the process, too
    come: list[int] = []  # an Event has a lock, which a second signal in the handler of the first would wait for
    before = signal.signal(signal.SIGTERM, lambda number, _: come.append(number))
    _is_deferring = True
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _is_deferring = False
        if come:
            signal.raise_signal(signal.SIGTERM)


def watch_main_thread(stderr: StderrLog) -> None:
    """End this process from now on if it gets SIGTERM while its main thread waits in a collective.

    Python runs signal handlers in the main thread, between two instructions. A thread that waits in a collective for a
    lost process executes none, so a script with a handler of its own would live until its elastic agent kills it, 30 s
    later, and all other hosts would wait for it. C code writes the signal to a descriptor at once, which a thread
    reads. Nothing is watched outside the main thread, or where the script has such a descriptor already.

    Raises OSError or RuntimeError if there are no descriptors or threads left.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    import ctypes  # noqa: PLC0415 - processes without a round need neither
    import socket  # noqa: PLC0415

    reader, writer = socket.socketpair()
    writer.settimeout(0.0)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if before != _NO_DESCRIPTOR:
        signal.set_wakeup_fd(before)
        reader.close()
        writer.close()
        return
    wire.adopt(reader)
    wire.adopt(writer)  # it stays open, and a forked child does not write to its parent
    pending_call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)

    def executes() -> bool:
        """Return whether the main thread executes an instruction within some seconds, as soon as it does."""
        executed = threading.Event()

        def note(_: object) -> int:
            executed.set()
            return 0

        call = pending_call(note)
        is_refused = ctypes.pythonapi.Py_AddPendingCall(call, None) != 0
        return is_refused or executed.wait(_BLOCKED_SECONDS)

    def read() -> None:
        with contextlib.suppress(OSError):
            while True:
                received = reader.recv(64)
                if not received:
                    return
                if signal.SIGTERM in received and not _is_deferring and not executes():
                    os._exit(_EXIT_CODE)

    threads.start("kubeai-signal", read, stderr)
