"""Logs a failing dependency once when it starts to fail and once when it recovers."""

import structlog

from servicekit.clock import Clock


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
