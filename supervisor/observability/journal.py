"""What happened: every durable change, told in order to whoever keeps or shows it, and never on the line's own way."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from servicekit.clock import Clock
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.interface import Snapshot, Store

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class NoticeChanged:
    """A notice became known (`before` is None) or another one; `at` is Unix seconds of the supervisor's clock."""

    before: ReclaimNotice | None
    after: ReclaimNotice
    at: float


@dataclass(frozen=True, slots=True)
class JobChanged:
    """A job became known (`before` is None), or something was observed of it or decided about it."""

    before: SupervisedJob | None
    after: SupervisedJob
    at: float


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """A job is not known any more, whether it had ended or not."""

    before: SupervisedJob
    at: float


Change = NoticeChanged | JobChanged | JobForgotten


class Listener(Protocol):
    """Somebody who wants to know; `name` is for the log."""

    name: str

    def on_change(self, change: Change) -> None:
        """Takes note of one change, without waiting for anything."""


class Journal:
    """Tells listeners what a store's snapshots show to have changed since `run` began.

    It follows the store from outside, so that nothing waits for it and a change whose maker has gone is told as well.
    What was stored before is no news. What lasted for less than one look is not told: two changes to the same key
    that were made durable together are one.

    Attributes:
        failed: How many changes each listener has failed to take. Its first failure is logged with the traceback.
    """

    def __init__(self, store: Store, listeners: Sequence[Listener], clock: Clock) -> None:
        self._store = store
        self._listeners = listeners
        self._clock = clock
        self.failed: dict[str, int] = {}

    async def run(self) -> None:
        """Root task: tells what changes, for ever."""
        known = self._store.snapshot()
        while True:
            snapshot = await self._store.changed(known.version)
            for change in changes(known, snapshot, self._clock.now()):
                self._tell(change)
            known = snapshot

    def _tell(self, change: Change) -> None:
        for listener in self._listeners:
            try:
                listener.on_change(change)
            except Exception:  # noqa: BLE001 - whatever it is, it is its own
                if listener.name not in self.failed:
                    _log.exception("journal.listener_failed", listener=listener.name)
                self.failed[listener.name] = self.failed.get(listener.name, 0) + 1


def changes(before: Snapshot, after: Snapshot, at: float) -> Iterator[Change]:
    """What makes one snapshot of the other: notices first, as decisions follow from them."""
    for known, notice in _others(before.notices, after.notices):
        yield NoticeChanged(known, notice, at)
    for earlier, job in _others(before.jobs, after.jobs):
        if earlier is not None and earlier.uid != job.uid:
            yield JobForgotten(earlier, at)
            yield JobChanged(None, job, at)
        else:
            yield JobChanged(earlier, job, at)
    for name in before.jobs.keys() - after.jobs.keys():
        yield JobForgotten(before.jobs[name], at)


def _others(before: Mapping[K, T], after: Mapping[K, T]) -> Iterator[tuple[T | None, T]]:
    # Mostly the very same objects: to compare 10,000 notices by value at each change would be felt.
    for key, value in after.items():
        known = before.get(key)
        if known is not value and known != value:
            yield known, value
