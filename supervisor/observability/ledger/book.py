"""Adds up the worker-seconds of each job by hour, as a listener of the journal."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from servicekit.clock import Clock
from supervisor.domain.ids import JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.ledger import Account, TimeSpent
from supervisor.domain.order import Worker
from supervisor.observability.journal import Change, JobChanged, JobForgotten
from supervisor.observability.ledger.accounts import workers_by_account
from supervisor.observability.ledger.words import SpokenTime

HOUR = 3600.0
NOBODY = JobName("")
"""Stands for no job: its hours say for how many seconds somebody has counted, as one worker that trains."""

MAX_WAITING = 50_000
"""Hours of jobs that wait for the database, about 20 MB."""


_LATE_SECONDS = 300.0
"""How long after its end an hour is kept for what processes still say about it. They speak once a minute."""
_MAX_UNTOLD = 128
"""Stretches of one job that wait for the words of its processes. A job that never says anything has one in an hour."""


@dataclass(frozen=True, slots=True, order=True)
class LedgerHour:
    """An hour of one job: `begins` is a Unix instant, a multiple of 3600."""

    begins: float
    job: JobName


LedgerHours = Mapping[LedgerHour, Mapping[Account, float]]
"""The worker-seconds of each account in hours of jobs."""


@dataclass(slots=True)
class _Stretch:
    """Seconds in one hour during which so many workers of a run did what no process has told yet."""

    hour: LedgerHour
    workers: int
    seconds: float


@dataclass(slots=True)
class _Present:
    """How many workers a job has in each account since an instant of the monotonic clock.

    `untold` are the latest stretches of its runs, the earliest first.
    """

    since: float
    workers: Mapping[Account, int]
    untold: deque[_Stretch] = field(default_factory=lambda: deque(maxlen=_MAX_UNTOLD))
    spoken: SpokenTime = field(default_factory=SpokenTime)


@dataclass(slots=True)
class LedgerBook:
    """The worker-seconds of the time in which this supervisor leads, until they are written.

    A state that the journal reports counts until it reports the next one. Durations are those of the monotonic clock:
    a wall clock that is set adds nothing, and only moves what follows to other hours.
    """

    name = "ledger"
    clock: Clock
    _present: dict[JobName, _Present] = field(default_factory=dict)
    _hours: dict[LedgerHour, dict[Account, float]] = field(default_factory=dict)
    _changed: set[LedgerHour] = field(default_factory=set)

    def begin(self, jobs: Iterable[SupervisedJob]) -> None:
        """Starts from the stored jobs. What they did before was counted by the supervisor that led then."""
        now = self.clock.monotonic()
        self._present[NOBODY] = _Present(now, {Account.TRAINING: 1})
        for job in jobs:
            self._present[job.name] = _Present(now, workers_by_account(job))

    def on_change(self, change: Change) -> None:
        match change:
            case JobChanged(_, after, _):
                self._count(after.name)
                self._take_in(after)
            case JobForgotten(before, _):
                self._count(before.name)
                self._present.pop(before.name, None)

    def _take_in(self, job: SupervisedJob) -> None:
        """Begins to count what the job has now."""
        now, workers = self.clock.monotonic(), workers_by_account(job)
        present = self._present.get(job.name)
        if present is None:
            self._present[job.name] = _Present(now, workers)
        else:
            present.since, present.workers = now, workers

    def on_spent(self, worker: Worker, said: TimeSpent) -> None:
        """Hears from a process what it has spent its time on, and divides the time of its job's run by that."""
        present = self._present.get(worker.job.name)
        if present is None or worker.rank != 0:
            return
        self._count(worker.job.name)
        # What was written and forgotten since cannot be divided any more.
        present.untold = deque((each for each in present.untold if each.hour in self._hours), _MAX_UNTOLD)
        untold = sum(stretch.seconds for stretch in present.untold)
        parts = present.spoken.heard(worker.process, said, untold)
        left = seconds = sum(parts.values())
        while left > 0 and present.untold:
            stretch = present.untold[-1]
            told = min(left, stretch.seconds)
            kept = self._hours[stretch.hour]
            moved = min(stretch.workers * told, kept.get(Account.UNMEASURED, 0.0))
            kept[Account.UNMEASURED] = kept.get(Account.UNMEASURED, 0.0) - moved
            for account, part in parts.items():
                kept[account] = kept.get(account, 0.0) + moved * part / seconds
            self._changed.add(stretch.hour)
            left -= told
            stretch.seconds -= told
            if stretch.seconds <= 0:
                present.untold.pop()

    def waiting(self) -> LedgerHours:
        """Counts until now, and returns the hours that have changed since they were written, whole."""
        for job in self._present:
            self._count(job)
        while len(self._hours) > MAX_WAITING:
            # Then nobody has counted in these hours, and the report says so.
            earliest = min(hour.begins for hour in self._hours)
            for hour in [hour for hour in self._hours if hour.begins == earliest]:
                del self._hours[hour]
                self._changed.discard(hour)
        return {hour: dict(self._hours[hour]) for hour in sorted(self._changed)}

    def written(self, hours: LedgerHours) -> None:
        """Hears that hours were written as `waiting` has returned them. Hours that are over are then forgotten."""
        now = self.clock.now()
        for hour, counted in hours.items():
            if self._hours.get(hour) == counted:
                self._changed.discard(hour)
                if hour.begins + HOUR + _LATE_SECONDS <= now:
                    del self._hours[hour]

    def _count(self, job: JobName) -> None:
        present = self._present.get(job)
        if present is None:
            return
        now, at = self.clock.monotonic(), self.clock.now()
        seconds, present.since = now - present.since, now
        if not present.workers:
            return
        for begins, part in _by_hour(at - seconds, at):
            hour = LedgerHour(begins, job)
            kept = self._hours.setdefault(hour, {})
            for account, workers in present.workers.items():
                kept[account] = kept.get(account, 0.0) + workers * part
            self._changed.add(hour)
            if running := present.workers.get(Account.UNMEASURED):
                _extend(present.untold, hour, running, part)


def _extend(untold: deque[_Stretch], hour: LedgerHour, workers: int, seconds: float) -> None:
    """Adds seconds at the end, to the last stretch if that is like them."""
    last = untold[-1] if untold else None
    if last is not None and (last.hour, last.workers) == (hour, workers):
        last.seconds += seconds
    else:
        untold.append(_Stretch(hour, workers, seconds))


def _by_hour(since: float, until: float) -> Iterator[tuple[float, float]]:
    """Yields the beginning of each hour between two instants, with the seconds that lie in it."""
    while since < until:
        begins = since // HOUR * HOUR
        end = min(until, begins + HOUR)
        yield begins, end - since
        since = end
