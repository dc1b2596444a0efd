"""All that kubeai-run knows at one moment, and how each thing that happens changes it. Pure: instants are passed in.

Every instant is in seconds on one monotonic clock.
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
    """A STOP for a run, as a training process left word of it: true also while the supervisor is away."""

    run: int
    generation: int


@dataclass(frozen=True)
class End:
    """How the last run's command ended.

    Attributes:
        exit_code: the command's own, or minus the signal that ended it.
        at: when.
        delay: seconds to wait before a restart, should this end turn out to be a failure.
        asked: we had asked the command to end, so its exit code says nothing.
        confirmed: the supervisor has confirmed that it knows of this end.
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
        began_at: when kubeai-run started to ask for the job's registration.
        order: the last order; None until the job is registered.
        fresh: the order came on the stream that is open now.
        in_place: the order's exclusions are in place.
        applied: generation of the last order whose exclusions were in place.
        blocked_until: do not touch files or start anything before: the last try failed.
        run: the last run that was started, 0 = none.
        running: its command is running.
        end_asked_at: when the running command's group was asked to end.
        kill_asked: the running command's group was killed.
        end: how the last run's command ended; None while it runs or when none was started.
        stopped_by: generation of the decision that ended the last run, or will: its end is no failure.
        restarts: failures that led to a restart.
        leaving: nothing is to be started again, and this is to be the exit code.
        save_asked_at: when somebody asked for the end of the job while its command ran, which may save first.
        impatient: somebody asked again, after the command's group was asked to end.
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
        """Whether somebody has asked for the end of the job."""
        return self.leaving in _SIGNALLED

    def ordered(self, order: Order) -> RunnerState:
        """Take an order in: it replaces the one before."""
        present = replace(self, order=order, fresh=True, in_place=False, blocked_until=0.0)
        # A STOP that was decided is never taken back, so a later order need not repeat it.
        is_stop = order.stopping and order.run == self.run
        # Suspended although the command had ended by itself: the announcement of that STOP was never heard here.
        is_suspension = order.kind is OrderKind.WAIT and self.end is not None
        return present.with_stop(order.generation) if is_stop or is_suspension else present

    def with_stop(self, generation: int) -> RunnerState:
        """Note that the last run's end, past or to come, is a stop that was decided at this generation."""
        return replace(self, stopped_by=max(generation, self.stopped_by or 0))

    def applied_order(self) -> RunnerState:
        """Note that the present order's exclusions are in place."""
        return replace(self, in_place=True, applied=self.order.generation if self.order else 0)

    def lost(self) -> RunnerState:
        """Note that the stream is gone: what we hold may be old."""
        return replace(self, fresh=False)

    def started(self, run: int, *, restart: bool) -> RunnerState:
        """Note that a run's command was started, as the restart of a failed one or as a run of its own."""
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
        """Note that the running command's group was asked to end."""
        asked = replace(self, end_asked_at=now)
        return asked.with_stop(self.order.generation) if self.order else asked

    def killed(self) -> RunnerState:
        """Note that the running command's group was killed."""
        return replace(self, kill_asked=True)

    def ended(self, exit_code: int, now: float, delay: float, stop: Stop | None) -> RunnerState:
        """Note that the command has ended; ``stop`` is what a training process left about a STOP, if any."""
        end = End(exit_code, at=now, delay=delay, asked=self.end_asked_at is not None)
        present = replace(self, running=False, end=end)
        return present.with_stop(stop.generation) if stop and stop.run == self.run else present

    def confirmed_end(self, run: int) -> RunnerState:
        """Note that the supervisor knows how this run ended."""
        if self.end is None or run != self.run:
            return self
        return replace(self, end=replace(self.end, confirmed=True))

    def blocked(self, until: float) -> RunnerState:
        """Note that files could not be written or the command not be started."""
        return replace(self, blocked_until=until)

    def ask_to_end(self, code: ExitCode, now: float) -> RunnerState:
        """Note that somebody asks for the end of the job: a running command may save first, the first time."""
        if self.leaving is None and self.running and self.end_asked_at is None:
            return replace(self, leaving=code, save_asked_at=now)
        return self.leave(code)

    def leave(self, code: ExitCode) -> RunnerState:
        """Note that this is to end, without a checkpoint; asked again once the command is being ended, at once."""
        if self.leaving is None:
            return replace(self, leaving=code)
        if self.save_asked_at is not None and self.end_asked_at is None:
            return replace(self, save_asked_at=None)
        return replace(self, impatient=True)
