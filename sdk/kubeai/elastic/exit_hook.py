"""The end of a process that was told to end: say so, and after a STOP wait for the job to be suspended.

Rank 0 is told to STOP alone. Were it gone at once, the others would form a new ring and step past its checkpoint, and
the launcher's operator might restart the job before it is suspended; so it holds on until it is released.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from .uplink import RetryPolicy, RunIsOver, Uplink
from .values import DirectiveKind
from .wire import Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .monitor import Monitor
    from .stderr import StderrLog

_HOLD_SECONDS = 20.0
_LEAVE_SECONDS = (
    5.0  # nobody waits for a worker that leaves alone; long enough for one more attempt at the slowest pace
)
_POST_SECONDS = 2.0  # a post in the training's own thread must not outlast a release by much


def hold_seconds(environ: Mapping[str, str]) -> float:
    """How long a process may be held after a STOP: KUBEAI_EXIT_HOLD in seconds, else 20; 0 = not at all."""
    try:
        seconds = float(environ.get("KUBEAI_EXIT_HOLD", _HOLD_SECONDS))
    except ValueError:
        return _HOLD_SECONDS
    return seconds if math.isfinite(seconds) and seconds >= 0 else _HOLD_SECONDS


def report_exit(monitor: Monitor, uplink: Uplink, stderr: StderrLog, hold: float) -> None:
    """Report `left` and wait, `hold` seconds at most; at once where no LEAVE or STOP has taken effect."""
    directive = monitor.state.directive
    if not directive.is_final:
        return
    if directive.kind is DirectiveKind.LEAVE:
        if directive.generation == 0:
            return  # SIGTERM, and no supervisor has ever spoken: nobody to tell
        _report_left(monitor, uplink, stderr, time.monotonic() + min(hold, _LEAVE_SECONDS))
        return
    reason = directive.reason.rstrip(".")  # The supervisor says whole sentences.
    stderr.once("hold", f"the job stops: {reason}. This process waits until it may go, at most {hold:g} s")
    deadline = time.monotonic() + hold
    _report_left(monitor, uplink, stderr, deadline)
    monitor.wait_for(lambda: monitor.is_released, max(0.0, deadline - time.monotonic()))


def _report_left(monitor: Monitor, uplink: Uplink, stderr: StderrLog, deadline: float) -> None:
    """In this thread, since the reporter's may be busy with a function of the user's, and no thread can start now.

    Tried once however near the deadline is: for a script that acknowledges nothing this is the job's acknowledgement.
    """
    retry = RetryPolicy(stderr)
    last_post = max(deadline, time.monotonic() + _POST_SECONDS)
    while not monitor.is_released:
        wait = _post(monitor, uplink, retry, last_post)
        if wait is None:
            return
        monitor.wait_for(lambda: monitor.is_released, max(0.0, min(wait, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            return


def _post(monitor: Monitor, uplink: Uplink, retry: RetryPolicy, deadline: float) -> float | None:
    """Report once; None when that is done with, else seconds to wait before the next attempt."""
    try:
        uplink.report(monitor.left(), timeout=min(_POST_SECONDS, max(0.001, deadline - time.monotonic())))
    except RunIsOver:
        monitor.end_run()
    except (Refused, Unreachable) as error:
        return retry.after(error)
    return None
