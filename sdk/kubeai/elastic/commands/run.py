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
import time
from pathlib import Path
from typing import Callable, Iterator, Sequence

from .command import Command
from .events import CommandEnded, Confirmed, Event, HostsChanged, LogMessage, Lost, Ordered, Rejected, Signalled
from .exit_codes import ExitCode
from .failpoints import At, UnknownFailpoint, arm, failpoint
from .hosts import PORT_VARIABLE
from .link import Link
from .options import TOKEN_FILE_VARIABLE, Options, UsageError, back_off, parse
from .orders import Order, Report, Result
from .outbox import Outbox
from .reconcile import Apply, Finish, Kill, Start, Step, Terminate, Wait, reconcile
from .runner_state import RunnerState
from .watch import HostsWatch
from .workspace import Workspace

_RETRY_SECONDS = 1.0
_REMINDER_SECONDS = 30.0
# For the supervisor to confirm the result. Shorter after a termination, because somebody waits for this process.
_RESULT_SECONDS = 5.0
_TERMINATED_SECONDS = 2.0
_THREAD_SECONDS = 1.0
_TRUST_SECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return an ``ExitCode``."""
    try:
        arm(os.environ)
        options = parse(sys.argv[1:] if argv is None else argv, os.environ)
        with _directory(options) as directory:
            workspace = Workspace(directory, options.job.name, options.supervisor.address, options.supervisor.ca)
            return Runner(options, workspace).run()
    except UsageError as error:
        _log(str(error))
        return error.code
    except (UnknownFailpoint, OSError) as error:
        _log(str(error))
        return ExitCode.USAGE


@contextlib.contextmanager
def _directory(options: Options) -> Iterator[Path]:
    if options.directory is not None:
        yield options.directory
        return
    with tempfile.TemporaryDirectory(prefix="kubeai-") as path:
        yield Path(path)


def _log(text: str) -> None:
    # Texts of the supervisor and of files may contain line breaks.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"kubeai-run: {' '.join(text.split())}\n")
        sys.stderr.flush()


class Runner:
    """Runs one job from its registration to its result."""

    def __init__(self, options: Options, workspace: Workspace) -> None:
        self._options = options
        self._workspace = workspace
        # SimpleQueue.put may be called from a signal handler.
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._outbox = Outbox()
        self._link = Link(options.supervisor, options.job, self._outbox, self._events.put)
        self._watch = HostsWatch(options.source, self._events.put)
        self._state = RunnerState(began_at=time.monotonic())
        self._hosts: tuple[str, ...] = ()
        self._command: Command | None = None
        self._logged_reasons: set[str] = set()
        self._waits_for = ""
        self._reminded_at = 0.0

    def run(self) -> ExitCode:
        """Run the job to its end."""
        with self._signals():
            try:
                self._watch.poll()
                self._handle_all()
                self._outbox.publish(self._report())
                self._watch.start()
                self._link.start()
                return self._loop()
            finally:
                self._close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = [signal.SIGTERM]
        # A shell ignores SIGINT for background jobs of a script, because Ctrl-C reaches them too.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            numbers.append(signal.SIGINT)
        previous = [signal.signal(number, lambda got, _: self._events.put(Signalled(got))) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, previous):
                signal.signal(number, handler)

    def _close(self) -> None:
        if self._command is not None:
            # Only after a bug: every regular way out of the loop has ended the command.
            self._command.kill()
            self._command.join()
        self._link.stop(_THREAD_SECONDS)
        self._watch.stop(_THREAD_SECONDS)

    def _loop(self) -> ExitCode:
        while True:
            step = reconcile(self._state, self._options.limits, time.monotonic())
            if isinstance(step, Finish):
                return self._finish(step)
            if isinstance(step, Wait):
                self._workspace.renew_trust()
                self._log_waiting(time.monotonic())
                self._wait(step.until)
            else:
                self._execute(step)
            self._outbox.publish(self._report())

    def _report(self, result: Result | None = None) -> Report:
        state = self._state
        return Report(
            hosts=self._hosts,
            run=state.run,
            running=state.running,
            exit_code=state.end.exit_code if state.end else None,
            restarts=state.restarts,
            applied=state.applied,
            ending=state.ending,
            result=result,
        )

    def _wait(self, until: float | None) -> None:
        # Not forever, because no event reports rotated CA certificates.
        latest = time.monotonic() + _TRUST_SECONDS
        event = self._next(latest if until is None else min(until, latest))
        if event is not None:
            self._handle(event)

    def _next(self, until: float | None) -> Event | None:
        try:
            return self._events.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def _handle_all(self) -> None:
        while not self._events.empty():
            self._handle(self._events.get())

    def _handle(self, event: Event) -> None:
        state = self._state
        if isinstance(event, Ordered):
            self._log_order(event.order)
            self._state = state.ordered(event.order)
        elif isinstance(event, Lost):
            self._log_absence(event.reason)
            self._state = state.lost()
        elif isinstance(event, Confirmed):
            if not event.report.running:
                self._state = state.confirmed_end(event.report.run)
        elif isinstance(event, CommandEnded):
            self._handle_exit(event.exit_code)
        elif isinstance(event, HostsChanged):
            self._hosts = event.hosts
        elif isinstance(event, LogMessage):
            _log(event.text)
        elif isinstance(event, Rejected):
            _log(event.reason)
            self._state = state.leave(event.code)
        elif isinstance(event, Signalled):
            self._handle_signal(event.number)

    def _handle_exit(self, exit_code: int) -> None:
        failpoint(At.COMMAND_ENDED)
        delay = back_off(self._options.back_off, self._state.restarts, random.random())  # noqa: S311 - jitter.
        stop = self._workspace.read_stop_marker()
        self._command = None
        self._state = self._state.ended(exit_code, time.monotonic(), delay, stop)
        _log(f"run {self._state.run} ended with {exit_code}" + (", stopped" if self._state.stopped_by else ""))

    def _handle_signal(self, number: int) -> None:
        before, save, code = self._state, self._options.limits.save, ExitCode(128 + number)
        self._state = before.ask_to_end(code, time.monotonic()) if save else before.leave(code)
        if self._state.save_asked_at is not None and before.save_asked_at is None:
            away = "" if before.fresh else "; the supervisor, which must request it, is unreachable"
            _log(
                f"{signal.Signals(number).name}: waiting up to {save:g} s for run {before.run} to save a checkpoint; "
                f"a second signal ends it at once{away}"
            )

    def _log_order(self, order: Order) -> None:
        before = self._state.order
        if self._logged_reasons:
            self._logged_reasons.clear()
            _log("the supervisor is reachable again" if before else "connected to the supervisor")
        if before is None or (before.phase, before.kind, before.run) != (order.phase, order.kind, order.run):
            _log(f"{order.phase}: {order.reason or 'no reason given'} ({order.kind.value}, run {order.run})")

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

    def _execute(self, step: Step) -> None:
        now = time.monotonic()
        if isinstance(step, Terminate):
            if step.message:
                _log(step.message)
            failpoint(At.COMMAND_ENDING)
            self._end_command(Command.terminate)
            failpoint(At.COMMAND_ASKED_TO_END)
            self._state = self._state.asked_to_end(now)
        elif isinstance(step, Kill):
            self._end_command(Command.kill)
            failpoint(At.COMMAND_KILLED)
            self._state = self._state.killed()
        else:
            try:
                self._write_or_start(step)
            except OSError as error:
                _log(f"{error}: retrying")
                self._state = self._state.blocked(now + _RETRY_SECONDS)

    def _write_or_start(self, step: Step) -> None:
        if isinstance(step, Apply):
            self._apply(step.order)
        elif isinstance(step, Start):
            self._start(step)

    def _end_command(self, how: Callable[[Command], None]) -> None:
        if self._command is not None:
            how(self._command)

    def _apply(self, order: Order) -> None:
        self._workspace.list_hosts(order.hosts, order.exclusions)
        if order.run == self._state.run:
            self._workspace.give_token(order.token)
        failpoint(At.ORDER_APPLIED)
        self._state = self._state.applied_order()

    def _start(self, step: Start) -> None:
        order = self._state.order
        if order is None:
            raise RuntimeError("cannot start without an order")
        self._workspace.enter_run(step.run, order.token if order.run == step.run else None)
        failpoint(At.COMMAND_STARTING)
        arguments = [argument.replace("{workers}", str(order.workers)) for argument in self._options.command]
        self._command = Command(
            arguments,
            self._environment(step.run, order.workers),
            self._options.limits.stop,
            lambda code: self._events.put(CommandEnded(code)),
        )
        failpoint(At.COMMAND_STARTED)
        self._state = self._state.started(step.run, restart=step.restart)
        _log(f"run {step.run} started with {order.workers} workers" + (", a restart" if step.restart else ""))

    def _environment(self, run: int, workers: int) -> dict[str, str]:
        # The command must not see the launcher's token.
        inherited = {name: value for name, value in os.environ.items() if name != TOKEN_FILE_VARIABLE}
        return {
            **inherited,
            **self._options.source.environment(),
            PORT_VARIABLE: str(self._options.port),
            "KUBEAI_DIR": str(self._workspace.directory),
            "KUBEAI_JOB": self._options.job.name,
            "KUBEAI_RUN": str(run),
            "KUBEAI_WORKERS": str(workers),
        }

    def _finish(self, step: Finish) -> ExitCode:
        _log(f"{step.code.meaning}: exit code {step.code.value}")
        if step.result is not None and self._state.order is not None:
            failpoint(At.FINISHING)
            self._outbox.publish(self._report(step.result))
            self._await_confirmation(self._confirmation_deadline(step.result))
            failpoint(At.FINISHED)
        return step.code

    def _confirmation_deadline(self, result: Result) -> float:
        """Return until when to wait. After a save, wait for the whole grace: the supervisor may be restarting."""
        asked, limits = self._state.save_asked_at, self._options.limits
        deadline = time.monotonic() + (_TERMINATED_SECONDS if result is Result.TERMINATED else _RESULT_SECONDS)
        return deadline if asked is None else max(deadline, asked + limits.save)

    def _await_confirmation(self, deadline: float) -> None:
        """Wait until the supervisor has confirmed the result, at most until the deadline."""
        while time.monotonic() < deadline:
            event = self._next(deadline)
            if isinstance(event, Lost):
                self._log_absence(event.reason)
            if isinstance(event, Signalled) or (isinstance(event, Confirmed) and event.report.result is not None):
                return


if __name__ == "__main__":
    sys.exit(main())
