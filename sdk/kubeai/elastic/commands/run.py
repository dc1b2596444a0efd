"""kubeai-run: keeps one job running through reclaims. Run it with --help.

The main thread reads one queue and takes one step at a time, as ``reconcile`` decides; every other thread only puts
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
from .events import CommandEnded, Confirmed, Event, HostsChanged, Lost, Ordered, Rejected, Remarked, Signalled
from .exit_codes import ExitCode
from .failpoints import At, UnknownFailpoint, arm, failpoint
from .hosts import PORT_VARIABLE
from .link import Link
from .options import TOKEN_FILE_VARIABLE, Options, UsageError, back_off, parse
from .orders import Order, Report, Result
from .outbox import Outbox
from .reconcile import Apply, Finish, Kill, Rest, Start, Step, Terminate, reconcile
from .situation import Situation
from .watch import HostsWatch
from .workspace import Workspace

_RETRY_SECONDS = 1.0
# For the supervisor to confirm the result: short where somebody waits for this process to end.
_RESULT_SECONDS = 5.0
_TERMINATED_SECONDS = 2.0
_THREAD_SECONDS = 1.0
_TRUST_SECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns one of ``ExitCode``."""
    try:
        arm(os.environ)
        options = parse(sys.argv[1:] if argv is None else argv, os.environ)
        with _directory(options) as directory:
            workspace = Workspace(directory, options.job.name, options.supervisor.address, options.supervisor.ca)
            return Runner(options, workspace).run()
    except (UsageError, UnknownFailpoint, OSError) as error:
        _say(str(error))
        return ExitCode.USAGE


@contextlib.contextmanager
def _directory(options: Options) -> Iterator[Path]:
    if options.directory is not None:
        yield options.directory
        return
    with tempfile.TemporaryDirectory(prefix="kubeai-") as path:
        yield Path(path)


def _say(text: str) -> None:
    # A supervisor's words and a file's are in it: one line whatever they hold.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"kubeai-run: {' '.join(text.split())}\n")
        sys.stderr.flush()


class Runner:
    """One job from its registration to its result."""

    def __init__(self, options: Options, workspace: Workspace) -> None:
        self._options = options
        self._workspace = workspace
        # A SimpleQueue, because its put may be called from a signal handler.
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._outbox = Outbox()
        self._link = Link(options.supervisor, options.job, self._outbox, self._events.put)
        self._watch = HostsWatch(options.source, self._events.put)
        self._situation = Situation(began_at=time.monotonic())
        self._hosts: tuple[str, ...] = ()
        self._command: Command | None = None
        self._troubles: set[str] = set()

    def run(self) -> ExitCode:
        """Run the job to its end."""
        with self._signals():
            try:
                self._watch.look()
                self._absorb_all()
                self._outbox.offer(self._report())
                self._watch.start()
                self._link.start()
                return self._loop()
            finally:
                self._close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = [signal.SIGTERM]
        # A shell ignores it for a script's background jobs: Ctrl-C, which reaches them too, is not meant for them.
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
            # Only after a fault of ours: every way out of the loop has ended the command before.
            self._command.kill()
            self._command.join()
        self._link.stop(_THREAD_SECONDS)
        self._watch.stop(_THREAD_SECONDS)

    def _loop(self) -> ExitCode:
        while True:
            step = reconcile(self._situation, self._options.limits, time.monotonic())
            if isinstance(step, Finish):
                return self._finish(step)
            if isinstance(step, Rest):
                self._workspace.renew_trust()
                self._rest(step.until)
            else:
                self._take(step)
            self._outbox.offer(self._report())

    def _report(self, result: Result | None = None) -> Report:
        now_so = self._situation
        return Report(
            hosts=self._hosts,
            run=now_so.run,
            running=now_so.running,
            exit_code=now_so.end.exit_code if now_so.end else None,
            restarts=now_so.restarts,
            applied=now_so.applied,
            ending=now_so.ending,
            result=result,
        )

    def _rest(self, until: float | None) -> None:
        # Not for ever, as nobody says that the certificates to trust have been exchanged.
        latest = time.monotonic() + _TRUST_SECONDS
        event = self._next(latest if until is None else min(until, latest))
        if event is not None:
            self._absorb(event)

    def _next(self, until: float | None) -> Event | None:
        try:
            return self._events.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def _absorb_all(self) -> None:
        while not self._events.empty():
            self._absorb(self._events.get())

    def _absorb(self, event: Event) -> None:
        now_so = self._situation
        if isinstance(event, Ordered):
            self._say_order(event.order)
            self._situation = now_so.ordered(event.order)
        elif isinstance(event, Lost):
            self._say_trouble(event.reason)
            self._situation = now_so.lost()
        elif isinstance(event, Confirmed):
            if not event.report.running:
                self._situation = now_so.confirmed_end(event.report.run)
        elif isinstance(event, CommandEnded):
            self._absorb_end(event.exit_code)
        elif isinstance(event, HostsChanged):
            self._hosts = event.hosts
        elif isinstance(event, Remarked):
            _say(event.text)
        elif isinstance(event, Rejected):
            _say(event.reason)
            self._situation = now_so.leave(event.code)
        elif isinstance(event, Signalled):
            self._absorb_signal(event.number)

    def _absorb_end(self, exit_code: int) -> None:
        failpoint(At.COMMAND_ENDED)
        delay = back_off(self._options.back_off, self._situation.restarts, random.random())  # noqa: S311 - jitter.
        word = self._workspace.word_of_stop()
        self._command = None
        self._situation = self._situation.ended(exit_code, time.monotonic(), delay, word)
        _say(f"run {self._situation.run} ended with {exit_code}" + (", stopped" if self._situation.stopped_by else ""))

    def _absorb_signal(self, number: int) -> None:
        before, save, code = self._situation, self._options.limits.save, ExitCode(128 + number)
        self._situation = before.end_job(code, time.monotonic()) if save else before.leave(code)
        if self._situation.save_asked_at is not None and before.save_asked_at is None:
            away = "" if before.fresh else "; the supervisor, which asks for it, is away"
            _say(
                f"{signal.Signals(number).name}: waiting up to {save:g} s for run {before.run} to save a checkpoint; "
                f"a second signal ends it now{away}"
            )

    def _say_order(self, order: Order) -> None:
        before = self._situation.order
        if self._troubles:
            self._troubles.clear()
            _say("the supervisor is back" if before else "the supervisor was reached")
        if before is None or (before.phase, before.verb, before.run) != (order.phase, order.verb, order.run):
            _say(f"{order.phase}: {order.reason or 'no reason given'} ({order.verb.value}, run {order.run})")

    def _say_trouble(self, reason: str) -> None:
        # Each reason once an absence: the same one comes with every attempt.
        if reason not in self._troubles:
            how = "cannot be reached yet" if self._situation.order is None else "is away, going on"
            _say(f"the supervisor {how}: {reason}")
        self._troubles.add(reason)

    def _take(self, step: Step) -> None:
        now = time.monotonic()
        if isinstance(step, Terminate):
            if step.remark:
                _say(step.remark)
            failpoint(At.COMMAND_ENDING)
            self._end_command(Command.terminate)
            failpoint(At.COMMAND_ASKED_TO_END)
            self._situation = self._situation.asked_to_end(now)
        elif isinstance(step, Kill):
            self._end_command(Command.kill)
            failpoint(At.COMMAND_KILLED)
            self._situation = self._situation.killed()
        else:
            try:
                self._write_or_start(step)
            except OSError as error:
                _say(f"{error}: trying again")
                self._situation = self._situation.blocked(now + _RETRY_SECONDS)

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
        if order.run == self._situation.run:
            self._workspace.give_token(order.token)
        failpoint(At.ORDER_APPLIED)
        self._situation = self._situation.applied_order()

    def _start(self, step: Start) -> None:
        order = self._situation.order
        if order is None:
            raise RuntimeError("nothing is started without an order")
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
        self._situation = self._situation.started(step.run, restart=step.restart)
        _say(f"run {step.run} started with {order.workers} workers" + (", a restart" if step.restart else ""))

    def _environment(self, run: int, workers: int) -> dict[str, str]:
        # The launcher's own token is not the command's business.
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
        _say(f"{step.code.meaning}: exit code {step.code.value}")
        if step.result is not None and self._situation.order is not None:
            failpoint(At.FINISHING)
            self._outbox.offer(self._report(step.result))
            self._await_confirmation(self._confirmation_deadline(step.result))
            failpoint(At.FINISHED)
        return step.code

    def _confirmation_deadline(self, result: Result) -> float:
        """Returns until when to wait: after a save, for all of its grace, as the supervisor may be restarting."""
        asked, limits = self._situation.save_asked_at, self._options.limits
        deadline = time.monotonic() + (_TERMINATED_SECONDS if result is Result.TERMINATED else _RESULT_SECONDS)
        return deadline if asked is None else max(deadline, asked + limits.save)

    def _await_confirmation(self, deadline: float) -> None:
        """Wait until the supervisor has confirmed the result, or for as long as that is worth it."""
        while time.monotonic() < deadline:
            event = self._next(deadline)
            if isinstance(event, Lost):
                self._say_trouble(event.reason)
            if isinstance(event, Signalled) or (isinstance(event, Confirmed) and event.report.result is not None):
                return
