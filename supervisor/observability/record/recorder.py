"""Writes what happens into the record's database, and reads it, in a thread of its own.

It listens to the journal. Nothing waits for it: while the database cannot be written, entries wait in memory, and if
they become too many, the record says how many are missing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault, RetryPolicy
from servicekit.reconcile import Wakeup, reconcile
from supervisor.domain.capacity import Machine, MachinePool
from supervisor.domain.ids import Host, JobName
from supervisor.domain.ledger import Account, HeldOn
from supervisor.domain.worker_time import HourlyTime
from supervisor.observability.history import HistoryEntry, JobHistory, entries_of
from supervisor.observability.journal import Change, NoticedHosts
from supervisor.observability.ledger.book import LedgerBook, LedgerChanges
from supervisor.observability.ledger.stays import StayBook, StayChanges
from supervisor.observability.record.database import (
    HistoryPage,
    HistoryQuery,
    PoolTime,
    RecordDatabase,
    RecordError,
    UnwritableError,
)
from supervisor.observability.record.pool_counts import PoolCounts, PoolDays
from supervisor.observability.record.stay_tables import JobCapacity, PoolCapacity

RECORD = "record"
"""The subject of entries about the record itself."""

MAX_PENDING = 20_000
"""Entries that wait for the database, about 10 MB."""

_MAX_BATCH = 1000
_BATCH_SECONDS = 1.0
"""For which an entry waits for others. A transaction in a thread costs as much as 20 entries: in a storm of notices
each change would have its own, just when processes have to be told."""
_SEED = 5000
_PRUNE_SECONDS = 600.0
_LEDGER_SECONDS = 60.0
_FIRST_PAUSE, _MAX_PAUSE = 1.0, 30.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """How much is kept: entries of the last `days`, and no more than `entries`."""

    days: float
    entries: int


class Recorder:
    """Keeps the record while this supervisor leads. The caller runs `run`.

    Args:
        url: Returns the URL of the database, as SQLAlchemy writes it; called in a thread, and may raise OSError.
        limits: How much is kept.
        history: Gets the latest entries from before this supervisor began to lead.
        book: Its hours are written once a minute, and at the end.
        stays: Likewise, when jobs wanted workers and which hosts were there.
        noticed: Returns the hosts of a job with a notice, each with its most urgent one.
        machine: Returns the machine under a node, with as much of it as is known.
        leader: The name of this supervisor; may be empty.
        fault: Knows whether the database can be used.
        clock: For the instants of the record's own entries, and for pruning.
        bulkhead: Keeps what nobody foresaw.
    """

    name = RECORD

    def __init__(  # noqa: PLR0913 - its parts, each of which is named where it is made
        self,
        *,
        url: Callable[[], str],
        limits: RecordLimits,
        history: JobHistory,
        book: LedgerBook,
        stays: StayBook,
        noticed: NoticedHosts,
        machine: Callable[[Host], Machine],
        leader: str,
        fault: Fault,
        clock: Clock,
        bulkhead: Bulkhead,
    ) -> None:
        self._url = url
        self._limits = limits
        self._history = history
        self._book = book
        self._stays = stays
        self._noticed = noticed
        self._machine = machine
        self._fault = fault
        self._clock = clock
        self._bulkhead = bulkhead
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=RECORD)
        self._database: RecordDatabase | None = None
        self._pending: deque[HistoryEntry] = deque()
        self._lost = 0
        self._wakeup = Wakeup()
        self._turn = asyncio.Lock()
        self._is_seeded = self._is_failing = self._has_failed = False
        self._prune_at = self._ledger_at = self._write_at = 0.0
        self._pools = PoolDays()
        # Nobody else writes under this name: not even the same supervisor, when it leads again.
        self._writer = f"{leader}@{clock.now():.6f}"
        by = f"Supervisor {leader}" if leader else "This supervisor"
        self._add(
            self._own("Began", f"{by} began to lead and to keep the record. What happened just before may be missing.")
        )

    def add(self, entry: HistoryEntry) -> None:
        """Keeps an entry that no change tells."""
        self._keep([entry])

    def on_change(self, change: Change) -> None:
        self._keep(entries_of(change, self._noticed, self._machine))

    def _keep(self, entries: Iterable[HistoryEntry]) -> None:
        waited = bool(self._pending)
        for entry in entries:
            self._add(entry)
        if self._is_failing or not self._pending:  # While it fails, each change would try again at once.
            return
        if not waited:
            self._write_at = self._clock.monotonic() + _BATCH_SECONDS
        if not waited or len(self._pending) >= _MAX_BATCH:  # Otherwise the next batch has its time already.
            self._wakeup.set()

    async def run(self) -> None:
        """Root task: writes entries as they come, and deletes what is older than it has to be kept.

        At its end it writes what still waits.
        """
        retry = RetryPolicy(
            errors=RecordError,
            fault=self._fault,
            first_seconds=_FIRST_PAUSE,
            max_seconds=_MAX_PAUSE,
        )
        try:
            await reconcile(RECORD, self.once, self._bulkhead, wakeup=self._wakeup, retry=retry)
        finally:
            await self._in_thread(partial(self._close, self._book.waiting(), self._stays.waiting()))
            self._thread.shutdown()

    async def once(self) -> float:
        """Writes a batch that is full or due; returns the seconds until there is something to do.

        Raises:
            RecordError: The database cannot be used now. The entries wait.
        """
        wait = self._write_at - self._clock.monotonic()
        if wait > 0 and 0 < len(self._pending) < _MAX_BATCH and not self._is_failing:
            return wait
        self._is_failing = True
        await self._seed()
        await self._write_batch()
        if not self._pending and not self._lost:
            await self._keep_up()
        self._is_failing = False
        # What has come meanwhile has woken nobody.
        if self._lost or len(self._pending) >= _MAX_BATCH:
            return 0.0
        if self._pending:
            return max(0.0, self._write_at - self._clock.monotonic())
        return min(self._prune_at, self._ledger_at) - self._clock.monotonic()

    async def read(self, query: HistoryQuery) -> HistoryPage:
        """Returns a page of the record.

        Raises:
            RecordError: It cannot be read now.
        """
        await self._seed()
        await self._write_waiting()
        return await self._in_thread(partial(self._read, query))

    async def read_hours(self, since: float, until: float) -> Mapping[JobName, Mapping[Account, float]]:
        """Returns the worker-seconds of each job in the hours that begin between two instants (Unix seconds).

        Raises:
            RecordError: They cannot be read now.
        """
        await self._write_ledger()
        return await self._in_thread(lambda: self._opened().read_hours(since, until))

    async def read_hourly(self, since: float, until: float, job: JobName | None) -> HourlyTime:
        """Returns the worker-seconds of one job, or of all, in each of the hours of `read_hours`.

        Raises:
            RecordError: They cannot be read now.
        """
        return await self._in_thread(lambda: self._opened().read_hourly(since, until, job))

    async def read_machines(self, since: float, until: float) -> Mapping[JobName, Mapping[HeldOn, float]]:
        """Returns the worker-seconds that each job held on each kind of machine, in the hours of `read_hours`.

        Raises:
            RecordError: They cannot be read now.
        """
        return await self._in_thread(lambda: self._opened().read_machines(since, until))

    async def read_held(self, since: float, until: float) -> Mapping[HeldOn, float]:
        """Returns the worker-seconds that all jobs together held on each kind of machine, in the hours of `read_hours`.

        Raises:
            RecordError: They cannot be read now.
        """
        return await self._in_thread(lambda: self._opened().read_held(since, until))

    async def read_pools(self, since: float, until: float) -> Mapping[JobName, Mapping[MachinePool, PoolTime]]:
        """Returns what each job held in each pool, in the hours of `read_hours`.

        Raises:
            RecordError: It cannot be read now.
        """
        return await self._in_thread(lambda: self._opened().read_pools(since, until))

    async def read_capacity(self, job: JobName, since: float, until: float, most: int) -> JobCapacity:
        """Returns when a job wanted workers, and which hosts were there, between two instants (Unix seconds).

        Raises:
            RecordError: It cannot be read now.
        """
        await self._write_ledger()
        return await self._in_thread(lambda: self._opened().read_capacity(job, since, until, most))

    async def read_pool_stays(self, pool: MachinePool, since: float, until: float, most: int) -> PoolCapacity:
        """Returns which hosts of a pool were there between two instants (Unix seconds), by job.

        Raises:
            RecordError: It cannot be read now.
        """
        await self._write_ledger()
        return await self._in_thread(lambda: self._opened().read_pool_stays(pool, since, until, most))

    async def read_pool_counts(self) -> PoolCounts:
        """Returns how many notices there were in each capacity pool in the last 30 days.

        Raises:
            RecordError: They cannot be read now.
        """
        await self._write_waiting()
        now = self._clock.now()
        return await self._in_thread(lambda: self._pools.counted(self._opened().read_pool_entries, now))

    async def _write_waiting(self) -> None:
        """Has a reader see what has happened up to now, unless the database did not take the last entries."""
        if self._pending and not self._lost and not self._has_failed:
            await self._write_batch()

    async def _write_batch(self) -> None:
        async with self._turn:  # A reader may want what waits to be written while a batch is.
            lost, self._lost = self._lost, 0
            try:
                refused = await self._in_thread(partial(self._write, lost))
            except RecordError:
                self._lost += lost
                self._has_failed = True
                raise
            self._has_failed = False
            self._lost += refused
            self._write_at = self._clock.monotonic() + _BATCH_SECONDS

    async def _keep_up(self) -> None:
        """Writes the ledger, prunes, and sums up days that are over, if it is time for that."""
        now = self._clock.monotonic()
        if now >= self._ledger_at:
            await self._write_ledger()
            self._ledger_at = now + _LEDGER_SECONDS
        if now >= self._prune_at:
            await self._in_thread(self._prune)
            self._prune_at = now + _PRUNE_SECONDS
            await self._in_thread(lambda: self._opened().sum_up(self._clock.now()))
            await self._count_pools()

    async def _count_pools(self) -> None:
        """Counts the days that are over, each by itself, so that whoever reads the record need not wait for all."""
        now = self._clock.now()
        while (day := self._pools.missing(now)) is not None:
            await self._in_thread(partial(self._count_day, day, now))

    async def _write_ledger(self) -> None:
        hours, stays = self._book.waiting(), self._stays.waiting()
        await self._in_thread(partial(self._write_hours, hours, stays))
        self._book.written(hours)
        self._stays.written(stays)

    async def _seed(self) -> None:
        """Reads what earlier leaders wrote, once, and before anything is written: whoever comes first has it done."""
        async with self._turn:
            if self._is_seeded:
                return
            page = await self._in_thread(partial(self._read, HistoryQuery(limit=_SEED)))
            if page.entries and page.since is not None:
                self._history.seed(page.entries, page.since if page.next is None else page.entries[0].at)
            self._is_seeded = True

    # What follows runs in the thread, whole: a task that is cancelled leaves no batch written and still waiting.

    def _opened(self) -> RecordDatabase:
        if self._database is None:
            try:
                url = self._url()
            except OSError as error:
                raise RecordError(f"the URL of the database cannot be read: {error}") from error
            self._database = RecordDatabase.open(url)
        return self._database

    def _read(self, query: HistoryQuery) -> HistoryPage:
        return self._opened().read(query)

    def _write(self, lost: int) -> int:
        """Writes a batch, and that so many entries were lost before; returns how many of it cannot be written."""
        database = self._opened()
        # By their places: an iteration would fail when the loop adds another one.
        batch = [self._pending[place] for place in range(min(len(self._pending), _MAX_BATCH))]
        gap = f"Entries that could not be written and are missing: {lost}."
        written, refused = [*batch, *([self._own("Gap", gap)] if lost else [])], 0
        try:
            database.append(written)
        except UnwritableError:
            for entry in written:  # One of them spoils no other.
                try:
                    database.append([entry])
                except UnwritableError:
                    refused += 1
        self._pools.written(entry.at for entry in written)
        for _ in batch:
            self._pending.popleft()
        return refused

    def _write_hours(self, hours: LedgerChanges, stays: StayChanges) -> None:
        self._opened().write_hours(hours.hours, hours.held, self._writer)
        self._opened().write_stays(stays, self._writer)

    def _count_day(self, day: float, now: float) -> None:
        self._pools.count(self._opened().read_pool_entries, day, now)

    def _prune(self) -> None:
        database = self._opened()
        if database.prune(self._clock.now() - self._limits.days * 86_400, self._limits.entries):
            self._pools.forget(database.begins() or self._clock.now())

    def _close(self, hours: LedgerChanges, stays: StayChanges) -> None:
        if self._database is None:
            return
        with suppress(RecordError):  # The loop has said so.
            while self._pending:
                self._write(0)
        with suppress(RecordError):
            self._write_hours(hours, stays)
        self._database.close()

    # What follows runs in the loop.

    def _own(self, what: str, text: str) -> HistoryEntry:
        return HistoryEntry(at=self._clock.now(), subject=RECORD, what=what, text=text)

    def _add(self, entry: HistoryEntry) -> None:
        if len(self._pending) >= MAX_PENDING:
            self._lost += 1
        else:
            self._pending.append(entry)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
