"""The state of kubeai-run and its transitions, as pure functions.

Instants are passed in as seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .exit_codes import ExitCode
from .orders import OrderKind

if TYPE_CHECKING:
    from .orders import Order

_SIGNALLED = (ExitCode.TERMINATED, ExitCode.INTERRUPTED)


@dataclass(frozen=True)
class Stop:
    """A STOP of a run, recorded by a training process. It is valid even while the supervisor is unreachable."""

    run: int
    generation: int


@dataclass(frozen=True)
class End:
    """How the last run's command ended.

    Attributes:
        exit_code: The command's exit code, or minus the signal that ended it.
        at: When it ended.
        delay: Seconds to wait before a restart if this end is a failure.
        asked: We had asked the command to end, so its exit code means nothing.
        confirmed: The supervisor has confirmed that it knows of this end.
    """

    exit_code: int
    at: float
    delay: float
    asked: bool = False
    confirmed: bool = False


@dataclass(frozen=True)
class RunnerState:
    """The present state of one job.

    Attributes:
        began_at: When kubeai-run started to register the job.
        order: The last order; None until the job is registered.
        fresh: The order came on the stream that is open now.
        in_place: The order's exclusions are applied.
        applied: Generation of the last order whose exclusions were applied.
        blocked_until: The last attempt to write files or start a command failed; do not retry before.
        run: The last run that was started; 0 = none.
        running: Its command is running.
        end_asked_at: When the running command's group was asked to end.
        kill_asked: The running command's group was killed.
        end: How the last run's command ended; None while it runs or if none was started.
        stopped_by: Generation of the decision that ended or will end the last run, so that its end is no failure.
        restarts: Failures that led to a restart.
        leaving: The exit code of kubeai-run, which will start nothing again; None while the job goes on.
        save_asked_at: When the end of the job was requested while its command ran, which may save first.
        impatient: The end was requested again after the command's group was asked to end.
    """

    began_at: float
    order: Order | None = None
    fresh: bool = False
    in_place: bool = False
    applied: int = 0
    blocked_until: float = 0.0
    run: int = 0
    running: bool = False
    end_asked_at: float | None = None
    kill_asked: bool = False
    end: End | None = None
    stopped_by: int | None = None
    restarts: int = 0
    leaving: ExitCode | None = None
    save_asked_at: float | None = None
    impatient: bool = False

    @property
    def ending(self) -> bool:
        """Whether somebody has requested the end of the job."""
        return self.leaving in _SIGNALLED

    def ordered(self, order: Order) -> RunnerState:
        """Return the state after an order, which replaces the previous one."""
        present = replace(self, order=order, fresh=True, in_place=False, blocked_until=0.0)
        # A decided STOP is never withdrawn, so a later order need not repeat it.
        is_stop = order.stopping and order.run == self.run
        # Suspended although the command ended by itself: the announcement of that STOP was never received.
        is_suspension = order.kind is OrderKind.WAIT and self.end is not None
        return present.with_stop(order.generation) if is_stop or is_suspension else present

    def with_stop(self, generation: int) -> RunnerState:
        """Record that the last run's past or future end is a stop, decided at this generation."""
        return replace(self, stopped_by=max(generation, self.stopped_by or 0))

    def applied_order(self) -> RunnerState:
        """Record that the present order's exclusions are applied."""
        return replace(self, in_place=True, applied=self.order.generation if self.order else 0)

    def lost(self) -> RunnerState:
        """Record that the stream is lost and the order may be outdated."""
        return replace(self, fresh=False)

    def started(self, run: int, *, restart: bool) -> RunnerState:
        """Record that a run's command was started."""
        return replace(
            self,
            run=run,
            running=True,
            end_asked_at=None,
            kill_asked=False,
            end=None,
            stopped_by=None,
            restarts=self.restarts + 1 if restart else self.restarts,
        )

    def asked_to_end(self, now: float) -> RunnerState:
        """Record that the running command's group was asked to end."""
        asked = replace(self, end_asked_at=now)
        return asked.with_stop(self.order.generation) if self.order else asked

    def killed(self) -> RunnerState:
        """Record that the running command's group was killed."""
        return replace(self, kill_asked=True)

    def ended(self, exit_code: int, now: float, delay: float, stop: Stop | None) -> RunnerState:
        """Record that the command has ended. ``stop`` is the STOP that a training process recorded, if any."""
        end = End(exit_code, at=now, delay=delay, asked=self.end_asked_at is not None)
        present = replace(self, running=False, end=end)
        return present.with_stop(stop.generation) if stop and stop.run == self.run else present

    def confirmed_end(self, run: int) -> RunnerState:
        """Record that the supervisor knows how this run ended."""
        if self.end is None or run != self.run:
            return self
        return replace(self, end=replace(self.end, confirmed=True))

    def blocked(self, until: float) -> RunnerState:
        """Record that files could not be written or the command could not be started."""
        return replace(self, blocked_until=until)

    def ask_to_end(self, code: ExitCode, now: float) -> RunnerState:
        """Record a request to end the job. On the first request, a running command may save a checkpoint."""
        if self.leaving is None and self.running and self.end_asked_at is None:
            return replace(self, leaving=code, save_asked_at=now)
        return self.leave(code)

    def leave(self, code: ExitCode) -> RunnerState:
        """Record a request to end without a checkpoint. A repeated request kills the command at once."""
        if self.leaving is None:
            return replace(self, leaving=code)
        if self.save_asked_at is not None and self.end_asked_at is None:
            return replace(self, save_asked_at=None)
        return replace(self, impatient=True)
