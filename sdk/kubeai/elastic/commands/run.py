"""kubeai-run: keeps one job running through reclaims. See --help.

The main thread reads one queue and executes one step at a time, as ``reconcile`` decides. Every other thread only puts
events on that queue.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable, Iterator, Sequence

from kubeai.elastic import threads
from kubeai.elastic.threads import StderrLog

from . import hosts
from .command import Command
from .failpoints import RunFailpoint, UnknownFailpoint, arm, failpoint
from .link import LauncherLink, RunReportOutbox
from .options import TOKEN_FILE_VARIABLE, CommandUsageError, RunOptions, back_off, parse
from .orders import (
    EXIT_CODE_MEANINGS,
    CommandEnded,
    Confirmed,
    HostsChanged,
    JobResult,
    LogMessage,
    Lost,
    Ordered,
    Rejected,
    RunExitCode,
    RunnerEvent,
    RunReport,
    SignalReceived,
)
from .reconcile import Apply, Finish, KillCommand, RunnerState, Start, Terminate, Wait, reconcile
from .workspace import RunWorkspace

_RETRY_SECONDS = 1.0
_REMINDER_SECONDS = 30.0
# For the supervisor to confirm the result. Shorter after a termination, because somebody waits for this process.
_RESULT_SECONDS = 5.0
_TERMINATED_SECONDS = 2.0
_THREAD_SECONDS = 1.0
_TRUST_SECONDS = 5.0
_FILE_SECONDS = 0.5
_SCRIPT_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return an ``ExitCode``."""
    try:
        arm(os.environ)
        options = parse(sys.argv[1:] if argv is None else argv, os.environ)
        with contextlib.ExitStack() as stack:
            directory = options.directory
            if directory is None:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kubeai-")))
            workspace = RunWorkspace(directory, options.job.name, options.supervisor.address, options.supervisor.ca)
            return Runner(options, workspace).run()
    except CommandUsageError as error:
        _log(str(error))
        return error.code
    except (UnknownFailpoint, OSError) as error:
        _log(str(error))
        return RunExitCode.USAGE


def _log(text: str) -> None:
    # Texts of the supervisor and of files may contain line breaks.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"kubeai-run: {' '.join(text.split())}\n")
        sys.stderr.flush()


class HostsWatch:
    """Reads the operator's list periodically, so that the supervisor knows it whether or not a command is running.

    An unreadable list changes nothing and is logged once.

    Args:
        source: The operator's list.
        on_event: Called with every event, from the watch's thread.
    """

    def __init__(self, source: hosts.HostSource, on_event: Callable[[RunnerEvent], None]) -> None:
        self._source = source
        self._on_event = on_event
        self._last: tuple[str, ...] | None = None
        self._fails = False
        self._stopped = threading.Event()
        self._interval = _SCRIPT_SECONDS if source.script else _FILE_SECONDS
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""

        def watch() -> None:
            while not self._stopped.wait(self._interval):
                self.poll()

        self._thread = threads.start("hosts", watch, StderrLog(), closed=self._stopped)

    def stop(self, timeout: float) -> None:
        """Stop the thread. Waits at most `timeout` seconds for a running script."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def poll(self) -> None:
        """Read the list once and emit an event if it has changed."""
        try:
            names = tuple(self._source.read())
        except hosts.Unreadable as fault:
            if not self._fails:
                instead = "no hosts are known yet" if self._last is None else "using the last good list"
                self._on_event(LogMessage(f"{fault}: {instead}"))
            self._fails = True
            return
        if self._fails:
            self._on_event(LogMessage("the operator's list is readable again"))
        self._fails = False
        if names != self._last:
            self._last = names
            self._on_event(HostsChanged(names))


class Runner:
    """Runs one job from its registration to its result."""

    def __init__(self, options: RunOptions, workspace: RunWorkspace) -> None:
        self._options = options
        self._workspace = workspace
        # SimpleQueue.put may be called from a signal handler.
        self._events: queue.SimpleQueue[RunnerEvent] = queue.SimpleQueue()
        self._outbox = RunReportOutbox()
        self._link = LauncherLink(options.supervisor, options.job, self._outbox, self._events.put)
        self._watch = HostsWatch(options.source, self._events.put)
        self._state = RunnerState(began_at=time.monotonic())
        self._hosts: tuple[str, ...] = ()
        self._command: Command | None = None
        self._logged_reasons: set[str] = set()
        self._waits_for = ""
        self._reminded_at = 0.0

    def run(self) -> RunExitCode:
        """Run the job to its end."""
        with self._signals():
            try:
                self._watch.poll()
                while not self._events.empty():
                    self._handle(self._events.get())
                self._outbox.publish(self._report())
                self._watch.start()
                self._link.start()
                return self._loop()
            finally:
                if self._command is not None:
                    # Only after a bug: every regular way out of the loop has ended the command.
                    self._command.signal(signal.SIGKILL)
                    self._command.waiter.join()
                self._link.stop(_THREAD_SECONDS)
                self._watch.stop(_THREAD_SECONDS)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = [signal.SIGTERM]
        # A shell ignores SIGINT for background jobs of a script, because Ctrl-C reaches them too.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            numbers.append(signal.SIGINT)
        previous = [signal.signal(number, lambda got, _: self._events.put(SignalReceived(got))) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, previous):
                signal.signal(number, handler)

    def _loop(self) -> RunExitCode:
        while True:
            now = time.monotonic()
            step = reconcile(self._state, self._options.limits, now)
            if isinstance(step, Finish):
                return self._finish(step)
            if isinstance(step, Wait):
                self._workspace.renew_trust()
                self._log_waiting(now)
                # Not forever, because no event reports rotated CA certificates.
                latest = time.monotonic() + _TRUST_SECONDS
                event = self._next(latest if step.until is None else min(step.until, latest))
                if event is not None:
                    self._handle(event)
            elif isinstance(step, (Terminate, KillCommand)):
                self._end_command(step, now)
            else:
                try:
                    if isinstance(step, Apply):
                        order = step.order
                        self._workspace.list_hosts(order.hosts, order.exclusions)
                        if order.run == self._state.run:
                            self._workspace.give_token(order.token)
                        failpoint(RunFailpoint.ORDER_APPLIED)
                        self._state = replace(self._state, in_place=True, applied=order.generation)
                    elif isinstance(step, Start):
                        self._start(step)
                except OSError as error:
                    _log(f"{error}: retrying")
                    self._state = replace(self._state, blocked_until=now + _RETRY_SECONDS)
            self._outbox.publish(self._report())

    def _report(self, result: JobResult | None = None) -> RunReport:
        state = self._state
        return RunReport(
            hosts=self._hosts,
            run=state.run,
            running=state.running,
            exit_code=state.end.exit_code if state.end else None,
            restarts=state.restarts,
            applied=state.applied,
            ending=state.ending,
            result=result,
        )

    def _next(self, until: float) -> RunnerEvent | None:
        """Wait for the next event, at most until an instant."""
        try:
            return self._events.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def _handle(self, event: RunnerEvent) -> None:
        state = self._state
        if isinstance(event, Ordered):
            before, order = state.order, event.order
            if self._logged_reasons:
                self._logged_reasons.clear()
                _log("the supervisor is reachable again" if before else "connected to the supervisor")
            if before is None or (before.phase, before.kind, before.run) != (order.phase, order.kind, order.run):
                _log(f"{order.phase}: {order.reason or 'no reason given'} ({order.kind.value}, run {order.run})")
            self._state = state.ordered(order)
        elif isinstance(event, Lost):
            self._log_absence(event.reason)
            self._state = replace(state, fresh=False)
        elif isinstance(event, Confirmed):
            if not event.report.running:
                self._state = state.confirmed_end(event.report.run)
        elif isinstance(event, CommandEnded):
            failpoint(RunFailpoint.COMMAND_ENDED)
            delay = back_off(self._options.back_off, state.restarts, random.random())  # noqa: S311 - jitter.
            stop = self._workspace.read_stop_marker()
            self._command = None
            self._state = state.ended(event.exit_code, time.monotonic(), delay, stop)
            _log(f"run {state.run} ended with {event.exit_code}" + (", stopped" if self._state.stopped_by else ""))
        elif isinstance(event, HostsChanged):
            self._hosts = event.hosts
        elif isinstance(event, LogMessage):
            _log(event.text)
        elif isinstance(event, Rejected):
            _log(event.reason)
            self._state = state.leave(event.code)
        elif isinstance(event, SignalReceived):
            self._handle_signal(event.number)

    def _handle_signal(self, number: int) -> None:
        before, save, code = self._state, self._options.limits.save, RunExitCode(128 + number)
        self._state = before.leave(code, time.monotonic() if save else None)
        if self._state.save_asked_at is not None and before.save_asked_at is None:
            away = "" if before.fresh else "; the supervisor, which must request it, is unreachable"
            _log(
                f"{signal.Signals(number).name}: waiting up to {save:g} s for run {before.run} to save a checkpoint; "
                f"a second signal ends it at once{away}"
            )

    def _log_waiting(self, now: float) -> None:
        """Log what the job waits for: at once, whenever it changes, and again after a while."""
        order = self._state.order
        text = order.waits_for if order is not None and not self._state.running else ""
        if text and (text != self._waits_for or now >= self._reminded_at + _REMINDER_SECONDS):
            _log(f"waiting: {text}")
            self._reminded_at = now
        self._waits_for = text

    def _log_absence(self, reason: str) -> None:
        # Log each reason once per absence: every attempt repeats it.
        if reason not in self._logged_reasons:
            how = "cannot be reached yet" if self._state.order is None else "is unreachable, continuing"
            _log(f"the supervisor {how}: {reason}")
        self._logged_reasons.add(reason)

    def _end_command(self, step: Terminate | KillCommand, now: float) -> None:
        if isinstance(step, Terminate):
            if step.message:
                _log(step.message)
            failpoint(RunFailpoint.COMMAND_ENDING)
        if self._command is not None:
            self._command.signal(signal.SIGTERM if isinstance(step, Terminate) else signal.SIGKILL)
        if isinstance(step, Terminate):
            failpoint(RunFailpoint.COMMAND_ASKED_TO_END)
            self._state = self._state.asked_to_end(now)
        else:
            failpoint(RunFailpoint.COMMAND_KILLED)
            self._state = replace(self._state, kill_asked=True)

    def _start(self, step: Start) -> None:
        order = self._state.order
        if order is None:
            raise RuntimeError("cannot start without an order")
        self._workspace.enter_run(step.run, order.token if order.run == step.run else None)
        failpoint(RunFailpoint.COMMAND_STARTING)
        arguments = [argument.replace("{workers}", str(order.workers)) for argument in self._options.command]
        source = self._options.source
        environment = {
            # The command must not see the launcher's token.
            **{name: value for name, value in os.environ.items() if name != TOKEN_FILE_VARIABLE},
            hosts.FILE_VARIABLE: source.file,
            hosts.SCRIPT_VARIABLE: source.script or "",
            hosts.PORT_VARIABLE: str(self._options.port),
            "KUBEAI_DIR": str(self._workspace.directory),
            "KUBEAI_JOB": self._options.job.name,
            "KUBEAI_RUN": str(step.run),
            "KUBEAI_WORKERS": str(order.workers),
        }
        self._command = Command(
            arguments,
            environment,
            self._options.limits.stop,
            lambda code: self._events.put(CommandEnded(code)),
        )
        failpoint(RunFailpoint.COMMAND_STARTED)
        self._state = self._state.started(step.run, restart=step.restart)
        _log(f"run {step.run} started with {order.workers} workers" + (", a restart" if step.restart else ""))

    def _finish(self, step: Finish) -> RunExitCode:
        """Report the result and wait until the supervisor has confirmed it, but not forever."""
        _log(f"{EXIT_CODE_MEANINGS[step.code]}: exit code {step.code.value}")
        if step.result is None or self._state.order is None:
            return step.code
        failpoint(RunFailpoint.FINISHING)
        self._outbox.publish(self._report(step.result))
        deadline = time.monotonic() + (_TERMINATED_SECONDS if step.result is JobResult.TERMINATED else _RESULT_SECONDS)
        asked = self._state.save_asked_at
        if asked is not None:  # After a save, wait for the whole grace: the supervisor may be restarting.
            deadline = max(deadline, asked + self._options.limits.save)
        while time.monotonic() < deadline:
            event = self._next(deadline)
            if isinstance(event, Lost):
                self._log_absence(event.reason)
            if isinstance(event, SignalReceived) or (isinstance(event, Confirmed) and event.report.result is not None):
                break
        failpoint(RunFailpoint.FINISHED)
        return step.code


if __name__ == "__main__":
    sys.exit(main())
