"""Adds up the worker-seconds of each job by account, as a listener of the journal."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from servicekit.clock import Clock
from supervisor.domain.ids import JobName, namespace
from supervisor.domain.job import SupervisedJob
from supervisor.domain.ledger import Account, TimeSpent
from supervisor.domain.order import Worker
from supervisor.observability.journal import Change, JobChanged, JobForgotten
from supervisor.observability.ledger.accounts import workers_by_account
from supervisor.observability.ledger.hours import HourlySums, LedgerHour
from supervisor.observability.ledger.words import SpokenTime

NOBODY = JobName("")
"""Stands for no job: its hours say for how many seconds somebody has counted, as one worker that trains."""

_MAX_UNTOLD = 128
"""Stretches of one job that wait for the words of its processes. A job that never says anything has one in an hour."""

LedgerHours = Mapping[LedgerHour, Mapping[Account, float]]
"""The worker-seconds of each account in hours of jobs."""


TotalTime = Mapping[tuple[str, Account], float]
"""Worker-seconds by the namespace of their jobs and by account."""


@dataclass(slots=True)
class _Stretch:
    """Seconds in one hour during which so many workers of a run did what no process has told yet."""

    hour: LedgerHour
    workers: int
    seconds: float


@dataclass(slots=True)
class _Heard:
    """What the processes of a job have said; `untold` are the latest stretches of its runs, the earliest first."""

    untold: deque[_Stretch] = field(default_factory=lambda: deque(maxlen=_MAX_UNTOLD))
    spoken: SpokenTime = field(default_factory=SpokenTime)


class LedgerBook:
    """The worker-seconds of the time in which this supervisor leads, until they are written.

    Attributes:
        told: Of the worker-seconds of runs, what processes have said of them so far. It only grows.
    """

    name = "ledger"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._sums = HourlySums[Account](clock)
        self._heard: dict[JobName, _Heard] = {}
        self._counted = Counter[tuple[str, Account]]()
        self.told = Counter[tuple[str, Account]]()

    def begin(self, jobs: Iterable[SupervisedJob]) -> None:
        """Starts from the stored jobs. What they did before was counted by the supervisor that led then."""
        self._sums.put(NOBODY, {Account.TRAINING: 1})
        for job in jobs:
            self._put(job)

    def on_change(self, change: Change) -> None:
        match change:
            case JobChanged(_, after, _):
                self._count(after.name)
                self._put(after)
            case JobForgotten(before, _):
                self._count(before.name)
                self._sums.forget(before.name)
                self._heard.pop(before.name, None)

    def on_spent(self, worker: Worker, said: TimeSpent) -> None:
        """Hears from a process what it has spent its time on, and divides the time of its job's run by that."""
        heard = self._heard.get(worker.job.name)
        if heard is None or worker.rank != 0:
            return
        self._count(worker.job.name)
        # What was written and forgotten since cannot be divided any more.
        heard.untold = deque((each for each in heard.untold if each.hour in self._sums), _MAX_UNTOLD)
        parts = heard.spoken.heard(worker.process, said, sum(stretch.seconds for stretch in heard.untold))
        left = sum(parts.values())
        shares = {account: part / left for account, part in parts.items()} if left > 0 else {}
        while left > 0 and heard.untold:
            stretch = heard.untold[-1]
            told = min(left, stretch.seconds)
            self._sums.move(stretch.hour, Account.UNMEASURED, shares, stretch.workers * told)
            self.told.update(
                {
                    (namespace(worker.job.name), account): stretch.workers * told * part
                    for account, part in shares.items()
                }
            )
            left -= told
            stretch.seconds -= told
            if stretch.seconds <= 0:
                heard.untold.pop()

    def waiting(self) -> LedgerHours:
        """Counts until now, and returns the hours that have changed since they were written, whole."""
        for job in self._sums.jobs:
            self._count(job)
        return self._sums.waiting()

    def counted(self) -> TotalTime:
        """Counts until now, and returns all worker-seconds so far; those of runs are unmeasured. They only grow."""
        for job in self._sums.jobs:
            self._count(job)
        return dict(self._counted)

    def written(self, hours: LedgerHours) -> None:
        """Hears that hours were written as `waiting` has returned them."""
        self._sums.written(hours)

    def _put(self, job: SupervisedJob) -> None:
        self._sums.put(job.name, workers_by_account(job))
        self._heard.setdefault(job.name, _Heard())

    def _count(self, job: JobName) -> None:
        heard = self._heard.get(job)
        for hour, workers, seconds in self._sums.count(job):
            running = workers.get(Account.UNMEASURED, 0)
            if job != NOBODY:
                self._counted.update({(namespace(job), each): number * seconds for each, number in workers.items()})
            if heard is not None and running:
                _extend(heard.untold, hour, running, seconds)


def _extend(untold: deque[_Stretch], hour: LedgerHour, workers: int, seconds: float) -> None:
    """Adds seconds at the end, to the last stretch if that is like them."""
    last = untold[-1] if untold else None
    if last is not None and (last.hour, last.workers) == (hour, workers):
        last.seconds += seconds
    else:
        untold.append(_Stretch(hour, workers, seconds))
