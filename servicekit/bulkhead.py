"""Confines an unexpected exception to the key whose work raised it, so that the other keys are still served.

Every loop over keys (jobs, notices, objects, peers, listeners) does the work on one key inside `Bulkhead.guard`.
"""

import traceback
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import structlog

from servicekit.bounds import one_line
from servicekit.clock import Clock
from servicekit.faults import Backoff

_FIRST_PAUSE, _MAX_PAUSE = 0.5, 10.0
"""Seconds. Short, because the key may be a job whose host goes in half a minute."""

_MAX_ROWS = 10_000
"""Failing keys that are remembered; a tenant chooses how many there are. Further ones are counted and not shown."""

_QUIET_SECONDS = 60.0
"""The same fault of the same key is logged once in this time: a broken listener fails at every change."""

_MAX_FRAMES = 30
"""Innermost frames in the log: to format all of an endless recursion takes longer than an API server waits."""

_log = structlog.get_logger()


class ProcessFault(Exception):  # noqa: N818 - it names what happened
    """An error that ends the process wherever code raises it, because it concerns no single key."""


_PASS = (ProcessFault, MemoryError)
"""Exceptions that no guard keeps. Cancellation passes as well: it is no `Exception`."""


Foreseen = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True)
class FaultPlace:
    """The loop and the key of a fault."""

    where: str
    key: Hashable


@dataclass(slots=True)
class _FailingKey:
    """The consecutive failures of one key."""

    summary: str
    since: float
    failures: int = 0
    retry_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE, _MAX_PAUSE))


@dataclass(eq=False, slots=True)
class Bulkhead:
    """The guard of all loops of one process. It logs a fault with its traceback, counts it, and confines it to its key.

    Attributes:
        counts: The faults so far, by loop. The names of loops are fixed, so they can be label values.
    """

    clock: Clock
    counts: Counter[str] = field(init=False, default_factory=Counter)
    _rows: dict[FaultPlace, _FailingKey] = field(init=False, default_factory=dict)
    _logged_at: dict[tuple[FaultPlace, str], float] = field(init=False, default_factory=dict)

    def guard(self, where: str, key: Hashable = "", *, passes: Foreseen = (), retried: bool = True) -> "GuardedWork":
        """Returns a context that catches exceptions of the work on one key.

        Afterwards `GuardedWork.retry_in` has the pause.

        Args:
            where: The loop; a fixed name.
            key: Whose work it is. Its text is logged.
            passes: The errors that are foreseen, and that the caller handles.
            retried: Whether the same work is tried again. If not, the key does not count as failing afterwards.
        """
        if where not in self.counts:
            self.counts[where] = 0  # A counter that begins with its first fault shows Prometheus no increase.
        return GuardedWork(self, FaultPlace(where, key), passes, retried)

    def pause(self, where: str, key: Hashable) -> float:
        """Returns the seconds for which the work on a failing key has to wait; 0 if it may go on."""
        row = self._rows.get(FaultPlace(where, key)) if self._rows else None
        return 0.0 if row is None else max(0.0, row.retry_at - self.clock.monotonic())

    def about(self, key: Hashable) -> Mapping[str, str]:
        """Returns the last fault of each loop that fails on this key, or on a tuple that contains it."""
        return {
            place.where: row.summary
            for place, row in self._rows.items()
            if place.key == key or (isinstance(place.key, tuple) and key in place.key)
        }

    def note(self, where: str, error: Exception, key: Hashable = "") -> None:
        """Logs and counts a fault that the caller has caught, such as one in the request of a peer."""
        self.counts[where] += 1
        self._log(FaultPlace(where, key), error)

    def on_loop_error(self, _loop: object, context: Mapping[str, Any]) -> None:
        """Handles an exception of a callback of the event loop; see `asyncio.loop.set_exception_handler`."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self.note("callback", error, context.get("message", ""))
        else:
            _log.error("internal.fault", where="callback", key="", error=one_line(str(context.get("message", ""))))

    def _log(self, place: FaultPlace, error: Exception) -> None:
        """Logs a fault, unless the same one of the same key was logged a moment ago."""
        now, logged = self.clock.monotonic(), (place, _summary(error))
        if now - self._logged_at.get(logged, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return
        if len(self._logged_at) >= _MAX_ROWS:
            self._logged_at.clear()
        self._logged_at[logged] = now
        _log.error(
            "internal.fault",
            where=place.where,
            key=one_line(str(place.key)),
            error=logged[1],
            exception="".join(traceback.format_exception(error, limit=-_MAX_FRAMES)),
        )

    def failed(self, place: FaultPlace, error: Exception, *, retried: bool) -> float:
        """Records a fault; returns the seconds to wait before the next attempt."""
        if not retried:
            self.note(place.where, error, place.key)
            return 0.0
        self.counts[place.where] += 1
        now, summary = self.clock.monotonic(), _summary(error)
        row = self._rows.get(place) or _FailingKey("", now)
        if len(self._rows) < _MAX_ROWS:
            self._rows[place] = row
        self._log(place, error)
        row.summary, row.failures = summary, row.failures + 1
        pause = row.backoff.next()
        row.retry_at = now + pause
        return pause

    def succeeded(self, place: FaultPlace) -> None:
        """Records a success after failures."""
        row = self._rows.pop(place, None) if self._rows else None
        if row is not None:
            seconds = round(self.clock.monotonic() - row.since, 1)
            _log.info(
                "internal.recovered",
                where=place.where,
                key=one_line(str(place.key)),
                after_seconds=seconds,
                failures=row.failures,
            )


@dataclass(eq=False, slots=True)
class GuardedWork:
    """The context of one piece of work on one key. It catches the exceptions of the work.

    Attributes:
        failed: Whether the work raised.
        retry_in: The seconds after which the work should be tried again; None if it has succeeded.
    """

    bulkhead: Bulkhead
    place: FaultPlace
    passes: Foreseen
    retried: bool
    failed: bool = field(init=False, default=False)
    retry_in: float | None = field(init=False, default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        if error is None:
            self.bulkhead.succeeded(self.place)
            return False
        if not isinstance(error, Exception) or isinstance(error, self.passes):
            return False
        if any(isinstance(one, _PASS) for one in _leaves(error)):
            return False
        self.failed = True
        self.retry_in = self.bulkhead.failed(self.place, error, retried=self.retried)
        return True


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yields the exceptions in a group, at any depth, or the exception itself if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _summary(error: Exception) -> str:
    """Describes an exception in one line, without the number of exceptions that a group's message has."""
    first = next(_leaves(error))
    return one_line(f"{type(first).__name__}: {first}" if str(first) else type(first).__name__)
