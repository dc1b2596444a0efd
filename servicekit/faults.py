"""A failing dependency is logged once when it starts failing and once when it recovers."""

import structlog

from servicekit.clock import Clock


class Fault:
    """Whether one dependency is failing at present, and why.

    Call `failed` after each attempt that failed and `recovered` after each that went well; only a change is logged:
    `dependency.failing` as a warning, `dependency.recovered` with the seconds and the number of failures between.
    """

    __slots__ = ("_clock", "_failures", "_log", "_since", "reason")

    def __init__(self, dependency: str, clock: Clock) -> None:
        self._clock = clock
        self._log = structlog.get_logger().bind(dependency=dependency)
        self._since = 0.0
        self._failures = 0
        self.reason: str | None = None

    def failed(self, reason: str) -> None:
        """An attempt failed; another reason than before is no change, so it is logged for debugging only."""
        if self.reason is None:
            self._since, self._failures = self._clock.monotonic(), 0
            self._log.warning("dependency.failing", reason=reason)
        elif self.reason != reason:
            self._log.debug("dependency.still_failing", reason=reason)
        self._failures += 1
        self.reason = reason

    def recovered(self) -> None:
        """An attempt went well."""
        if self.reason is None:
            return
        seconds = round(self._clock.monotonic() - self._since, 1)
        self._log.info("dependency.recovered", after_seconds=seconds, failures=self._failures, last_reason=self.reason)
        self.reason = None
