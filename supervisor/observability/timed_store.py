"""A store that measures how long its writes take."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from servicekit.clock import Clock
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.interface import JobChange, NoticeChange, Snapshot, Store, StoreUnavailableError

T = TypeVar("T")

OPERATIONS = ("put_notice", "put_job", "decide")


class Timing(Protocol):
    """A callback for the end of each write."""

    def __call__(self, operation: str, seconds: float, *, durable: bool) -> None:
        """`operation` is one of `OPERATIONS`; `durable` is False if the store was unavailable."""


class TimedStore:
    """Wraps a store. A write that is refused or cancelled is not measured."""

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
        return await self._timed("put_notice", self._store.put_notice(key, change))

    async def put_job(self, name: JobName, change: JobChange) -> SupervisedJob | None:
        return await self._timed("put_job", self._store.put_job(name, change))

    async def decide(self, read: SupervisedJob, decision: Decision) -> bool:
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
