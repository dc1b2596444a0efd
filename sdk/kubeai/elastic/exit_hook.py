"""Runs when a process exits: reports the exit, and after a STOP waits until the job is suspended.

In a round of torchrun, it waits for its elastic agent: that would take an exit for a failure, which uses up one of its
restarts.

Only rank 0 receives the STOP at first. If it exited at once, the others would form a new ring and train past its
checkpoint, and the launcher's operator might restart the job before it is suspended. So rank 0 waits until it is
released.
"""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

from . import elastic_agent
from .agreement import Purpose
from .messages import described
from .uplink import RetryPolicy, RunIsOver, Uplink, is_unknown
from .values import DirectiveKind
from .wire import Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .messages import Report
    from .monitor import Monitor
    from .stderr import StderrLog

_HOLD_SECONDS = 20.0
# Nobody waits for a worker that leaves alone; this is enough for one more attempt at the slowest pace.
_LEAVE_SECONDS = 5.0
# Kueue deletes the pods of a job 0.25 s after it has decided, and the STOP comes up to 0.9 s after that.
_STOP_SECONDS = 2.0
_POST_SECONDS = 2.0  # a post in the training thread must not take much longer than the release


def hold_seconds(environ: Mapping[str, str]) -> float:
    """Return how long a process may wait after a STOP: KUBEAI_EXIT_HOLD in seconds, 20 by default, 0 for not at all."""
    try:
        seconds = float(environ.get("KUBEAI_EXIT_HOLD", _HOLD_SECONDS))
    except ValueError:
        return _HOLD_SECONDS
    return seconds if math.isfinite(seconds) and seconds >= 0 else _HOLD_SECONDS


def report_exit(monitor: Monitor, uplink: Uplink, stderr: StderrLog, hold: float) -> None:
    """Report `left` and wait at most `hold` seconds. Return at once if there is nothing to wait for."""
    error = _uncaught()
    if error is not None and monitor.state.directive.is_final and monitor.state.wants_checkpoint:
        monitor.checkpoint_failed(None, described(error))
    if monitor.awaits_agent:
        elastic_agent.obey_sigterm()
        monitor.hold(Purpose.RENDEZVOUS)
        monitor.wait_for(lambda: monitor.is_released, max(hold, elastic_agent.HOLD_SECONDS))
        return
    if elastic_agent.failed_in_collective():
        elastic_agent.obey_sigterm()
        monitor.wait_for(lambda: monitor.is_released, elastic_agent.FAILURE_SECONDS)
        return
    if monitor.awaits_stop:
        monitor.wait_for(lambda: not monitor.awaits_stop, min(hold, _STOP_SECONDS))
        monitor.answer_stop()
    directive = monitor.state.directive
    if not directive.is_final:
        return
    if directive.kind is DirectiveKind.LEAVE:
        if directive.generation == 0:
            return  # SIGTERM, and no supervisor was ever connected
        _report_left(monitor, uplink, stderr, time.monotonic() + min(hold, _LEAVE_SECONDS))
        return
    reason = directive.reason.rstrip(".")  # The supervisor sends whole sentences.
    stderr.once("hold", f"the job stops: {reason}. This process waits for its release, at most {hold:g} s")
    deadline = time.monotonic() + hold
    _report_left(monitor, uplink, stderr, deadline)
    monitor.wait_for(lambda: monitor.is_released, max(0.0, deadline - time.monotonic()))


def _uncaught() -> Exception | None:
    """Return the exception that ends this process. An interactive one keeps those of earlier commands."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    return error if isinstance(error, Exception) else None


def _report_left(monitor: Monitor, uplink: Uplink, stderr: StderrLog, deadline: float) -> None:
    """Post the report from this thread: the reporter may be busy in user code, and no thread can start at exit.

    It is tried once however near the deadline is: for a script that acknowledges nothing, this report is the job's
    acknowledgement.
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
    """Post once. Return None when the report is delivered or no longer needed, otherwise the seconds until a retry.

    A save that the reporter has not reported yet is reported first: after `left` it would come too late.
    """
    try:
        outcome = monitor.unreported_outcome()
        if outcome is not None:
            _post_outcome(outcome, uplink, deadline)
            monitor.confirm(outcome)
        uplink.report(monitor.left(), timeout=_seconds_for_post(deadline))
    except RunIsOver:
        monitor.end_run()
    except (Refused, Unreachable) as error:
        return retry.after(error)
    return None


def _post_outcome(outcome: Report, uplink: Uplink, deadline: float) -> None:
    try:
        uplink.report(outcome, timeout=_seconds_for_post(deadline))
    except Refused as error:
        if not is_unknown(error):
            raise


def _seconds_for_post(deadline: float) -> float:
    return min(_POST_SECONDS, max(0.001, deadline - time.monotonic()))
