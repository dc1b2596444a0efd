"""Tells listeners about every durable change, in order, without delaying decisions."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.interface import Snapshot, Store

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NoticeChanged:
    """A notice became known (`before` is None) or changed; `at` is Unix seconds of the supervisor's clock."""

    before: ReclaimNotice | None
    after: ReclaimNotice
    at: float


@dataclass(frozen=True, slots=True)
class JobChanged:
    """A job became known (`before` is None) or changed."""

    before: SupervisedJob | None
    after: SupervisedJob
    at: float


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """A job was removed from the store, whether it had ended or not."""

    before: SupervisedJob
    at: float


Change = NoticeChanged | JobChanged | JobForgotten


class Listener(Protocol):
    """A consumer of changes; `name` is for the log."""

    name: str

    def on_change(self, change: Change) -> None:
        """Called for each change; must not block."""


class Journal:
    """Compares the snapshots of a store and tells listeners what changed since `run` started.

    It follows the store from outside, so nothing waits for it. Values that were stored before are not reported. Two
    changes to the same key between two snapshots are reported as one.

    Args:
        store: What to follow.
        listeners: Told of every change.
        clock: For the instants of changes.
        bulkhead: Keeps what a listener raises with that listener.
    """

    def __init__(self, store: Store, listeners: Sequence[Listener], clock: Clock, bulkhead: Bulkhead) -> None:
        self._store = store
        self._listeners = listeners
        self._clock = clock
        self._bulkhead = bulkhead

    async def run(self) -> None:
        """Root task: tells listeners what changes."""
        known = self._store.snapshot()
        while True:
            snapshot = await self._store.changed(known.version)
            with self._bulkhead.guard("journal", retried=False):
                for change in changes(known, snapshot, self._clock.now()):
                    self._notify(change)
            known = snapshot

    def _notify(self, change: Change) -> None:
        for listener in self._listeners:
            with self._bulkhead.guard("journal", listener.name, retried=False):
                listener.on_change(change)


def changes(before: Snapshot, after: Snapshot, at: float) -> Iterator[Change]:
    """The changes between two snapshots: notices first, as decisions follow from them."""
    for known, notice in _others(before.notices, after.notices):
        yield NoticeChanged(known, notice, at)
    for earlier, job in _others(before.jobs, after.jobs):
        if earlier is not None and earlier.id != job.id:
            yield JobForgotten(earlier, at)
            yield JobChanged(None, job, at)
        else:
            yield JobChanged(earlier, job, at)
    for name in before.jobs.keys() - after.jobs.keys():
        yield JobForgotten(before.jobs[name], at)


def _others(before: Mapping[K, T], after: Mapping[K, T]) -> Iterator[tuple[T | None, T]]:
    # Identity first, as most objects are the same: comparing 10,000 notices by value at each change would be slow.
    for key, value in after.items():
        known = before.get(key)
        if known is not value and known != value:
            yield known, value
