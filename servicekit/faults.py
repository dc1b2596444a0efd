"""Handles a dependency that fails: logs it once, spreads the attempts over time, and names the errors to retry."""

import math
import os
import random
from dataclasses import dataclass, field

import structlog

from servicekit.clock import Clock

_REPLACED_WITHIN = 1.0
"""Seconds: clients of a server that has just gone spread their attempts over this time, so its successor gets them soon
and not all at once."""

_OF_THE_ABSENCE = 1 / 4
"""After a longer absence the attempts are spread over this part of it."""

_log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class Fault:
    """The state of one dependency.

    Call `failed` after each attempt that failed and `recovered` after each that succeeded. Only a change is logged:
    `dependency.failing` as a warning, `dependency.recovered` with the seconds and the number of failures in between.

    Attributes:
        reason: Why the dependency fails; None while it works.
    """

    dependency: str
    clock: Clock
    reason: str | None = field(init=False, default=None)
    _since: float = field(init=False, default=0.0)
    _failures: int = field(init=False, default=0)

    def failed(self, reason: str) -> None:
        """Records a failed attempt. A new reason is not a change of state, so it is only logged for debugging."""
        if self.reason is None:
            self._since, self._failures = self.clock.monotonic(), 0
            _log.warning("dependency.failing", dependency=self.dependency, reason=reason)
        elif self.reason != reason:
            _log.debug("dependency.still_failing", dependency=self.dependency, reason=reason)
        self._failures += 1
        self.reason = reason

    def recovered(self) -> None:
        """Records a successful attempt."""
        if self.reason is None:
            return
        _log.info(
            "dependency.recovered",
            dependency=self.dependency,
            after_seconds=round(self.clock.monotonic() - self._since, 1),
            failures=self._failures,
            last_reason=self.reason,
        )
        self.reason = None


@dataclass(eq=False, slots=True)
class Backoff:
    """Draws each delay between zero and a bound that doubles: exponential backoff with full jitter.

    The delay is drawn from the whole range, because thousands of peers lose the same server in the same instant.

    Attributes:
        first_seconds: Bound of the first delay.
        max_seconds: The bound stops growing here.
        source: Draws the delays.
    """

    first_seconds: float
    max_seconds: float
    source: random.Random = field(default_factory=random.Random)
    _bound: float | None = field(init=False, default=None)
    """The bound of the next delay; None stands for the first bound."""

    def next(self, at_most: float = math.inf) -> float:
        """Returns the seconds to wait before the next attempt; `at_most` bounds this delay alone."""
        bound = self.first_seconds if self._bound is None else self._bound
        self._bound = min(self.max_seconds, bound * 2)
        return self.source.uniform(0.0, min(bound, at_most))

    def reset(self) -> None:
        """Starts again at the first bound."""
        self._bound = None


@dataclass(eq=False, slots=True)
class ReconnectDelays:
    """Draws the delays of a client that has lost its server. A client of a server that has just gone tries more often.

    Attributes:
        backoff: Bounds the delays, also while the server stays away.
        clock: Monotonic instants.
    """

    backoff: Backoff
    clock: Clock
    _lost_at: float | None = field(init=False, default=None)

    def next(self) -> float:
        """Records a failure; returns the seconds to wait before the next attempt."""
        now = self.clock.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        return self.backoff.next(max(_REPLACED_WITHIN, (now - self._lost_at) * _OF_THE_ABSENCE))

    def reset(self) -> None:
        """Forgets the absence, because the server is there."""
        self.backoff.reset()
        self._lost_at = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Names the errors that a controller retries, the pauses, and the fault that reports them.

    Attributes:
        errors: The errors that are foreseen.
        fault: Reports the first failure of a row, and the recovery.
        first_seconds: Bound of the first pause; see `Backoff`.
        max_seconds: The bound stops growing here.
    """

    errors: type[Exception] | tuple[type[Exception], ...]
    fault: Fault
    first_seconds: float
    max_seconds: float


def connect_error_reason(error: Exception) -> str:
    """Explains why a peer could not be reached, in the operating system's words, such as `Connection refused`.

    aiohttp's text is about its own settings.
    """
    import aiohttp  # noqa: PLC0415 - whoever has such an error has loaded it

    if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(error, aiohttp.ClientSSLError):
        return str(error)
    cause = error.os_error
    if cause.errno is None or cause.errno < 0:  # A host name that does not resolve.
        return cause.strerror or str(cause)
    return os.strerror(cause.errno)
