"""The session of one process with the supervisor: its threads, fork handling, SIGTERM and exit.

Four daemon threads keep four kinds of waiting apart: for the moment a directive takes effect, for the next line
(including connecting), for the delivery of an answer to an agreement, and for anything that may take time (reports,
user callbacks). None of them holds a lock of the logging module or of sys.stderr, which a fork would copy.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from . import elastic_agent, gates, identity, monitor, threads, wire
from .agreement import AgreedStep, StoreArbiter
from .messages import DirectiveKind, StepPurpose, described
from .ranks import RANK, WORLD_SIZE, NumberWatch
from .reporter import AgreementReplies, Reporter
from .spending import ProcessTime
from .threads import StderrLog
from .uplink import CallRetry, ProcessUplink, RunIsOver, host_name, is_unknown
from .wire import CallRefused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from .messages import Notice
    from .monitor import Monitor

_HOLD_SECONDS = 20.0
# Nobody waits for a worker that leaves alone; this is enough for one more attempt at the slowest pace.
_LEAVE_SECONDS = 5.0
# Kueue deletes the pods of a job 0.25 s after it has decided, and the STOP comes up to 0.9 s after that.
_STOP_SECONDS = 2.0
_POST_SECONDS = 2.0  # a post in the training thread must not take much longer than the release


class ProcessSession:
    """The session of this process. It does nothing until it is started, and forked children can only read it.

    Attributes:
        monitor: What is received and reported. In a forked child, it keeps the state at the fork.
        callbacks: The functions that `on_notice` was given, each with the ids of the notices that it has seen.
        stderr: Where the library writes to.
        is_child: Whether this process was forked from the one that the session was started in.
    """

    def __init__(self) -> None:
        self.stderr = StderrLog()
        self.monitor = monitor.Monitor()
        self.callbacks: list[tuple[Callable[[Notice], object], set[str]]] = []
        self.is_child = False
        self.stderr.sender = self._sender
        self._rank = NumberWatch(RANK, sys.modules, os.environ, self.stderr)
        self._world_size = NumberWatch(WORLD_SIZE, sys.modules, os.environ, self.stderr)
        self._sigterm = SigtermHandler(self.monitor.terminate, self.stderr)
        self._starting = threading.Lock()
        self._is_started = False
        agreed = AgreedStep(self.monitor, StoreArbiter(sys.modules))
        gates.connect(agreed.arrive, lambda: self.monitor.state.wants_checkpoint)

    def start(
        self,
        rank: Callable[[], int | None] | None,
        world_size: Callable[[], int | None] | None,
        *,
        sigterm: bool,
        collective: bool,
    ) -> None:
        """Start listening on the first call. The arguments are applied on each call."""
        if self.is_child:
            return
        if rank is not None:
            self._rank.callable = rank
        if world_size is not None:
            self._world_size.callable = world_size
        if collective:
            self.monitor.set_member(collective=True)
        if not self._is_started:
            with self._starting:
                if not self._is_started:
                    self._is_started = True
                    self._start()
        if sigterm:
            self._sigterm.watch()

    def _sender(self) -> str:
        rank = self.monitor.member.rank
        return f"rank {'unknown' if rank is None else rank}, {host_name()}, pid {os.getpid()}"

    def _start(self) -> None:
        try:
            monitor.share_flag()
            self.monitor.time = ProcessTime.of_this_process()
            home = identity.directory()
            uplink = ProcessUplink(home, self.stderr)
            annotations = identity.AnnotationWatch(home, self.monitor)
            listener = monitor.StreamListener(self.monitor, uplink, self.stderr)
            os.register_at_fork(after_in_child=self._abandon)
            tasks: dict[str, Callable[[], object]] = {
                "time": functools.partial(self.monitor.run_timer, annotations.poll),
                "report": Reporter(
                    self.monitor, uplink, (self._rank, self._world_size), self.callbacks, self.stderr
                ).run,
                "answer": AgreementReplies(self.monitor, uplink, self.stderr).run,
                "listen": listener.run,
            }
            for name, task in tasks.items():
                threads.start(f"kubeai-{name}", task, self.stderr)
            atexit.register(self._end, uplink, listener)
            if elastic_agent.has_round():
                elastic_agent.watch_failures()
                elastic_agent.watch_main_thread(self.stderr)
        except Exception as error:  # noqa: BLE001 - without memory or threads training still continues
            self.stderr.once("absent", f"cannot listen for reclaims: {error!r}. Training continues without warnings")

    def _abandon(self) -> None:
        self.is_child = True
        gates.abandon_in_child(monitor.check_alive)
        with contextlib.suppress(OSError):
            wire.abandon_in_child()

    def _end(self, uplink: ProcessUplink, listener: monitor.StreamListener) -> None:
        if self.is_child:
            return
        self._sigterm.restore()  # with the previous handler, a SIGTERM ends the wait below at once
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C skips the wait
            report_exit(self.monitor, uplink, self.stderr, hold_seconds(os.environ))
        listener.close()
        uplink.shared.close()


@dataclass(eq=False)
class SigtermHandler:
    """Calls `terminate` on each SIGTERM, which is then a LEAVE of this process, and then the previous handler.

    Where SIGTERM reaches the training process (torchrun, a process that is a pod's first), it arrives even if the
    network to the supervisor is cut. In a round of the rendezvous backend `kubeai`, SIGTERM comes from the elastic
    agent once the round is over: nothing can be saved together any more, and a handler could not even run while a
    collective waits.
    """

    terminate: Callable[[], None]
    stderr: StderrLog
    _pid: int = 0
    _previous: Any = None  # from signal.getsignal: a function, SIG_DFL or SIG_IGN
    _masks: dict[int, set[int]] = field(default_factory=dict)

    def watch(self) -> None:
        """Install the handler once. Prints one line on stderr if that is not possible."""
        previous = signal.getsignal(signal.SIGTERM)
        if previous == self._handle or elastic_agent.has_round():
            return
        if previous is None:
            self.stderr.once("sigterm", "SIGTERM is not watched: its handler was not installed by Python")
            return
        if threading.current_thread() is not threading.main_thread():
            self.stderr.once("sigterm", "SIGTERM is not watched: call init() in the main thread")
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
        self.terminate()
        if callable(self._previous):
            self._previous(number, frame)


# The exit. In a round of torchrun, a process waits for its elastic agent: that would take an exit for a failure, which
# uses up one of its restarts. Only rank 0 receives the STOP at first. If it exited at once, the others would form a new
# ring and train past its checkpoint, and the launcher's operator might restart the job before it is suspended. So rank
# 0 waits until it is released.


def hold_seconds(environ: Mapping[str, str]) -> float:
    """Return how long a process may wait after a STOP: KUBEAI_EXIT_HOLD in seconds, 20 by default, 0 for not at all."""
    try:
        seconds = float(environ.get("KUBEAI_EXIT_HOLD", _HOLD_SECONDS))
    except ValueError:
        return _HOLD_SECONDS
    return seconds if math.isfinite(seconds) and seconds >= 0 else _HOLD_SECONDS


def report_exit(monitor: Monitor, uplink: ProcessUplink, stderr: StderrLog, hold: float) -> None:
    """Report `left` and wait at most `hold` seconds. Return at once if there is nothing to wait for."""
    # The exception that ends this process. An interactive one keeps those of earlier commands.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    if isinstance(error, Exception) and monitor.state.directive.is_final and monitor.state.wants_checkpoint:
        monitor.checkpoint_failed(None, described(error))
    if monitor.stops_for_round:
        # It has stopped for the next round, so its elastic agent will end it.
        elastic_agent.obey_sigterm()
        monitor.hold(StepPurpose.RENDEZVOUS)
        monitor.wait_for(lambda: monitor.is_released, max(hold, elastic_agent.HOLD_SECONDS))
        return
    if elastic_agent.failed_in_collective:
        elastic_agent.obey_sigterm()
        monitor.wait_for(lambda: monitor.is_released, elastic_agent.FAILURE_SECONDS)
        return
    monitor.await_stop(min(hold, _STOP_SECONDS))
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


def _report_left(monitor: Monitor, uplink: ProcessUplink, stderr: StderrLog, deadline: float) -> None:
    """Post the report from this thread: the reporter may be busy in user code, and no thread can start at exit.

    It is tried once however near the deadline is: for a script that acknowledges nothing, this report is the job's
    acknowledgement.
    """
    retry = CallRetry(stderr)
    last_post = max(deadline, time.monotonic() + _POST_SECONDS)
    while not monitor.is_released:
        try:
            _post_left(monitor, uplink, last_post)
        except RunIsOver:
            monitor.end_run()
            return
        except (CallRefused, Unreachable) as error:
            wait = retry.after(error)
        else:
            return
        monitor.wait_for(lambda: monitor.is_released, max(0.0, min(wait, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            return


def _post_left(monitor: Monitor, uplink: ProcessUplink, deadline: float) -> None:
    """Report a save that the reporter has not reported yet, as it would come too late after `left`, and then `left`."""
    outcome = monitor.outcome
    if outcome is not None:
        try:
            uplink.report(outcome, min(_POST_SECONDS, max(0.001, deadline - time.monotonic())), monitor.spent())
        except CallRefused as error:
            if not is_unknown(error):
                raise
        monitor.confirm(outcome)
    uplink.report(monitor.left(), min(_POST_SECONDS, max(0.001, deadline - time.monotonic())), monitor.spent())
