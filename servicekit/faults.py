"""Handles a dependency that fails: logs it once, spreads the attempts over time, and says which errors are retried."""

import math
import os
import random
from dataclasses import dataclass

import structlog

from servicekit.clock import Clock

_REPLACED_WITHIN = 1.0
"""Seconds: clients of a server that has just gone spread their attempts over this time, so its successor gets them soon
and not all at once."""

_OF_THE_ABSENCE = 1 / 4
"""After a longer absence the attempts are spread over this part of it."""


class Fault:
    """The state of one dependency.

    Call `failed` after each attempt that failed and `recovered` after each that succeeded. Only a change is logged:
    `dependency.failing` as a warning, `dependency.recovered` with the seconds and the number of failures in between.

    Attributes:
        reason: Why the dependency fails; None while it works.
    """

    __slots__ = ("_clock", "_failures", "_log", "_since", "reason")

    def __init__(self, dependency: str, clock: Clock) -> None:
        self._clock = clock
        self._log = structlog.get_logger().bind(dependency=dependency)
        self._since = 0.0
        self._failures = 0
        self.reason: str | None = None

    def failed(self, reason: str) -> None:
        """Notes a failed attempt. A new reason is not a change, so it is only logged for debugging."""
        if self.reason is None:
            self._since, self._failures = self._clock.monotonic(), 0
            self._log.warning("dependency.failing", reason=reason)
        elif self.reason != reason:
            self._log.debug("dependency.still_failing", reason=reason)
        self._failures += 1
        self.reason = reason

    def recovered(self) -> None:
        """Notes a successful attempt."""
        if self.reason is None:
            return
        seconds = round(self._clock.monotonic() - self._since, 1)
        self._log.info("dependency.recovered", after_seconds=seconds, failures=self._failures, last_reason=self.reason)
        self.reason = None


class Backoff:
    """Draws each delay between zero and a bound that doubles: exponential backoff with full jitter.

    The delay is drawn from the whole range, because thousands of peers lose the same server in the same instant.

    Args:
        first_seconds: Bound of the first delay.
        max_seconds: The bound stops growing here.
        source: Draws the delays.
    """

    __slots__ = ("_bound", "_first", "_max", "_random")

    def __init__(self, first_seconds: float, max_seconds: float, source: random.Random | None = None) -> None:
        self._first = first_seconds
        self._max = max_seconds
        self._bound = first_seconds
        self._random = source or random.Random()  # noqa: S311 - spreads load, keeps no secret

    def next(self, at_most: float = math.inf) -> float:
        """Returns the seconds to wait before the next attempt; `at_most` bounds this delay alone."""
        bound = self._bound
        self._bound = min(self._max, bound * 2)
        return self._random.uniform(0.0, min(bound, at_most))

    def reset(self) -> None:
        """Starts again at the first bound."""
        self._bound = self._first


class ReconnectDelays:
    """Draws the delays of a client that has lost its server, and asks a server that has just gone more often.

    Args:
        first_seconds: Bound of the first delay.
        max_seconds: Bound of every delay, also while the server stays away.
        clock: Monotonic instants.
        source: Draws the delays.
    """

    __slots__ = ("_backoff", "_clock", "_lost_at")

    def __init__(
        self, first_seconds: float, max_seconds: float, clock: Clock, source: random.Random | None = None
    ) -> None:
        self._backoff = Backoff(first_seconds, max_seconds, source)
        self._clock = clock
        self._lost_at: float | None = None

    def next(self) -> float:
        """Returns the seconds to wait before the next attempt."""
        now = self._clock.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        return self._backoff.next(max(_REPLACED_WITHIN, (now - self._lost_at) * _OF_THE_ABSENCE))

    def reset(self) -> None:
        """Forgets the absence: the server is there."""
        self._backoff.reset()
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
