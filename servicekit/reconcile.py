"""The loop of a controller whose work has no keys, and the policy by which controllers retry.

Work that belongs to one key, such as one job's, goes through a `servicekit.workqueue.KeyedWorkQueue`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from servicekit.backoff import Backoff
from servicekit.bulkhead import Bulkhead
from servicekit.faults import Fault
from servicekit.wakeup import Wakeup

Once = Callable[[], Awaitable[float | None]]
"""Compares what is with what should be and acts. Returns after how many seconds it is due again; None: when woken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Which errors are retried, after what pause, and where they are reported.

    Attributes:
        errors: The errors that are foreseen.
        fault: Reports the first failure of a row, and the recovery.
        first_seconds: Bound of the first pause; see `servicekit.backoff.Backoff`.
        max_seconds: The bound stops growing here.
    """

    errors: type[Exception] | tuple[type[Exception], ...]
    fault: Fault
    first_seconds: float
    max_seconds: float

    def backoff(self) -> Backoff:
        """Returns the pauses for one row of failures."""
        return Backoff(self.first_seconds, self.max_seconds)


async def reconcile(
    where: str, once: Once, bulkhead: Bulkhead, *, wakeup: Wakeup | None = None, retry: RetryPolicy | None = None
) -> None:
    """Calls `once` for ever, the first time immediately.

    Args:
        where: The name of the loop in logs and metrics.
        once: See `Once`.
        bulkhead: Keeps what nobody foresaw; then `once` is called again after a pause.
        wakeup: Ends a pause early, also the one after a foreseen failure.
        retry: The errors that are foreseen.
    """
    attempt = once if retry is None else _retrying(once, retry)
    wakeup = wakeup or Wakeup()
    while True:
        seconds = None
        with bulkhead.guard(where) as guarded:
            seconds = await attempt()
        if guarded.retry_in is not None:
            await asyncio.sleep(guarded.retry_in)
        else:
            await wakeup.wait(seconds)


def _retrying(once: Once, retry: RetryPolicy) -> Once:
    backoff = retry.backoff()

    async def attempt() -> float | None:
        try:
            seconds = await once()
        except retry.errors as error:
            retry.fault.failed(str(error))
            return backoff.next()
        retry.fault.recovered()
        backoff.reset()
        return seconds

    return attempt
