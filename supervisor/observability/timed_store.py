"""A store that says how long it takes."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from servicekit.clock import Clock
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.interface import JobChange, NoticeChange, Snapshot, Store, StoreUnavailableError

T = TypeVar("T")

OPERATIONS = ("put_notice", "put_job", "decide")
"""What is timed."""


class Timing(Protocol):
    """Told of each change that was asked for: `put_notice`, `put_job` or `decide`, and whether it became durable."""

    def __call__(self, operation: str, seconds: float, *, durable: bool) -> None:
        """Takes note of it."""


class TimedStore:
    """Passes everything on to a store. A change that refuses itself, or whose maker has gone, is no measurement."""

    def __init__(self, store: Store, timing: Timing, clock: Clock) -> None:
        self._store = store
        self._timing = timing
        self._clock = clock
        self.run = store.run
        self.close = store.close
        self.snapshot: Callable[[], Snapshot] = store.snapshot
        self.changed = store.changed
        self.forget_job = store.forget_job
        self.prune = store.prune

    async def put_notice(self, key: NoticeId, change: NoticeChange) -> ReclaimNotice | None:
        """See `supervisor.store.interface.Store`."""
        return await self._timed("put_notice", self._store.put_notice(key, change))

    async def put_job(self, name: JobName, change: JobChange) -> SupervisedJob | None:
        """See `supervisor.store.interface.Store`."""
        return await self._timed("put_job", self._store.put_job(name, change))

    async def decide(self, read: SupervisedJob, decision: Decision) -> bool:
        """See `supervisor.store.interface.Store`."""
        return await self._timed("decide", self._store.decide(read, decision))

    async def _timed(self, operation: str, outcome: Awaitable[T]) -> T:
        started = self._clock.monotonic()
        try:
            value = await outcome
        except StoreUnavailableError:
            self._timing(operation, self._clock.monotonic() - started, durable=False)
            raise
        self._timing(operation, self._clock.monotonic() - started, durable=True)
        return value
