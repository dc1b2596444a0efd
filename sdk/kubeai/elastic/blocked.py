"""Ends a process that has received SIGTERM while its main thread waits in a collective.

Python runs signal handlers in the main thread, between two instructions. A thread that waits in a collective for a lost
process executes none, so a script with a handler of its own would live until its elastic agent kills it, 30 s later,
and all other hosts would wait for it. C code writes the signal to a descriptor at once, which a thread reads here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

from . import sockets, threads

if TYPE_CHECKING:
    from .stderr import StderrLog

_SECONDS = 3.0  # the main thread is blocked if it executes nothing for so long
_EXIT_CODE = 128 + signal.SIGTERM
_NONE = -1

_PendingCall = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def watch(stderr: StderrLog) -> None:
    """Watch the main thread from now on. Do nothing outside it, or where the script has such a descriptor already.

    Raises OSError or RuntimeError if there are no descriptors or threads left.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = socket.socketpair()
    writer.settimeout(0.0)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if before != _NONE:
        signal.set_wakeup_fd(before)
        reader.close()
        writer.close()
        return
    sockets.adopt(reader)
    sockets.adopt(writer)  # it stays open, and a forked child does not write to its parent
    threads.start("kubeai-signal", functools.partial(_run, reader), stderr)


def _run(reader: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            received = reader.recv(64)
            if not received:
                return
            if signal.SIGTERM in received and not _executes(_SECONDS):
                os._exit(_EXIT_CODE)


def _executes(seconds: float) -> bool:
    """Return whether the main thread executes an instruction within this time. Returns as soon as it does."""
    executed = threading.Event()

    def note(_: object) -> int:
        executed.set()
        return 0

    call = _PendingCall(note)
    is_refused = ctypes.pythonapi.Py_AddPendingCall(call, None) != 0
    return is_refused or executed.wait(seconds)
