"""Detects loops that hang, and has the kernel end a process that is frozen."""

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from servicekit.clock import Clock

# A loop that is later than this many seconds hangs: the slowest thing on a loop takes one.
_GRACE = 10.0
# How often the kernel's timer is set again before it expires. Each time costs 3 µs.
_FEEDS = 4
_SIGEV_SIGNAL = 0


class Watchdog:
    """Detects a loop that hangs.

    Each turn says when the next one is due; the loop hangs if that is late by more than the grace.
    """

    __slots__ = ("_clock", "_due")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = clock.monotonic()

    def feed(self, within: float) -> None:
        """Records a turn of the loop. The next call is due `within` that many seconds."""
        self._due = self._clock.monotonic() + within

    @property
    def alive(self) -> bool:
        return self._clock.monotonic() <= self._due + _GRACE


class _SigEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _TimerSetting(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class KernelWatchdog:
    """A timer of the kernel that kills this process unless it is set again in time.

    Only SIGKILL ends a stopped process, and only the kernel can still send it. The process's sockets are closed with
    it, so the supervisor learns at once that nobody watches the node.

    Args:
        seconds: The kernel kills the process this long after the last turn of its event loop at which no loop hung.

    Raises:
        OSError: The kernel gives no timer.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._library, "timer_create"):  # It was in librt before glibc 2.34.
            self._library = ctypes.CDLL("librt.so.1", use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _SigEvent(signal=signal.SIGKILL, notify=_SIGEV_SIGNAL)
        # This clock stands still while the machine is suspended.
        _check(self._library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)))

    def _set(self, seconds: float) -> None:
        whole = int(seconds)
        setting = _TimerSetting(0, 0, whole, int((seconds - whole) * 1e9))
        _check(self._library.timer_settime(self._timer, 0, ctypes.byref(setting), None))

    async def run(self, hanging: Callable[[], Sequence[str]]) -> None:
        """Root task: sets the timer again while no loop hangs. The shutdown of the agent has no timer."""
        before: Sequence[str] = ()
        try:
            while True:
                loops = hanging()
                if not loops:
                    self._set(self._seconds)
                elif not before:
                    structlog.get_logger().error("agent.hangs", killed_in=self._seconds, loops=loops)
                before = loops
                await asyncio.sleep(self._seconds / _FEEDS)
        finally:
            self._set(0.0)


def kernel_watchdog(seconds: float) -> KernelWatchdog | None:
    """Makes the watchdog of this process; None if it is switched off or cannot work, which is logged."""
    if seconds == 0.0:
        return None
    reason = _obstacle()
    if not reason:
        try:
            return KernelWatchdog(seconds)
        except OSError as error:
            reason = str(error)
    structlog.get_logger().warning("watchdog.off", reason=reason)
    return None


def _obstacle() -> str:
    """Returns why the kernel's timer cannot work in this process; empty if it can."""
    if os.getpid() == 1:
        return "no signal of a timer ends the first process of a container: share the pod's process namespace"
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = "\nTracerPid: 0"
    # The process id of this process's debugger; 0 without one.
    tracer = status.partition("\nTracerPid:")[2].split(maxsplit=1)[0]
    if sys.gettrace() is not None or tracer != "0":
        return "a debugger may stop this process"
    return ""


def _check(outcome: int) -> None:
    if outcome != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
