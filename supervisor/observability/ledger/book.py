"""Adds up the worker-seconds of each job by account and machine, as a listener of the journal."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from servicekit.clock import Clock
from supervisor.domain.ids import Host, JobName, namespace
from supervisor.domain.job import SupervisedJob
from supervisor.domain.ledger import HELD, Account, HeldOn, TimeSpent
from supervisor.domain.order import Worker
from supervisor.observability.journal import Change, JobChanged, JobForgotten
from supervisor.observability.ledger.accounts import hosts_by_account, workers_by_account
from supervisor.observability.ledger.hours import HourlySums, LedgerHour
from supervisor.observability.ledger.machines import NOTHING_KNOWN, HostMachines
from supervisor.observability.ledger.totals import PoolTotals
from supervisor.observability.ledger.words import SpokenTime

NOBODY = JobName("")
"""Stands for no job: its hours say for how many seconds somebody has counted, as one worker that trains."""

_MAX_UNTOLD = 128
"""Stretches of one job that wait for the words of its processes. A job that never says anything has one in an hour."""

LedgerHours = Mapping[LedgerHour, Mapping[Account, float]]
"""The worker-seconds of each account in hours of jobs."""

HeldHours = Mapping[LedgerHour, Mapping[tuple[Account, HeldOn], float]]
"""Those that jobs held, by account and by the kind of machine that they were held on."""

_Spent = tuple[Account, HeldOn | None]
"""An account, and the kind of machine if it is of workers that a job holds."""

TotalTime = Mapping[tuple[str, Account], float]
"""Worker-seconds by the namespace of their jobs and by account."""


@dataclass(slots=True)
class _Stretch:
    """Seconds in one hour during which so many workers of a run did what no process has told yet, by machine."""

    hour: LedgerHour
    workers: Mapping[HeldOn, int]
    seconds: float


@dataclass(slots=True)
class _Heard:
    """What the processes of a job have said; `untold` are the latest stretches of its runs, the earliest first."""

    untold: deque[_Stretch] = field(default_factory=lambda: deque(maxlen=_MAX_UNTOLD))
    spoken: SpokenTime = field(default_factory=SpokenTime)


@dataclass(frozen=True, slots=True)
class _Workers:
    """The workers of a job at one moment: the hosts that it holds, the machines under its hosts, and what it lacks."""

    job: SupervisedJob
    hosts: Mapping[Account, frozenset[Host]]
    lacking: Mapping[Account, int]
    machines: Mapping[Host, HeldOn]

    def counted(self) -> Mapping[_Spent, int]:
        """Returns how many there are of each account, and on each kind of machine."""
        counted = Counter[_Spent]({(account, None): number for account, number in self.lacking.items()})
        for account, hosts in self.hosts.items():
            counted.update((account, self.machines.get(host, NOTHING_KNOWN)) for host in hosts)
        return counted


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """The hours that have changed since they were written, whole."""

    counted: Mapping[LedgerHour, Mapping[_Spent, float]]

    @property
    def hours(self) -> LedgerHours:
        """The worker-seconds of each account."""
        found: dict[LedgerHour, dict[Account, float]] = {}
        for hour, counted in self.counted.items():
            of_hour = found[hour] = {}
            for (account, _), seconds in counted.items():
                of_hour[account] = of_hour.get(account, 0.0) + seconds
        return found

    @property
    def held(self) -> HeldHours:
        """Those that jobs held, by machine as well. An hour is in it also if its job has held nothing."""
        return {
            hour: {(account, on): seconds for (account, on), seconds in counted.items() if on is not None}
            for hour, counted in self.counted.items()
        }


class LedgerBook:
    """The worker-seconds of the time in which this supervisor leads, until they are written.

    What a process says of a run is taken for all of the run's workers, whatever machines they are on.

    Args:
        clock: Of both kinds.
        machines: Knows the machines of hosts.

    Attributes:
        totals: What jobs held on each kind of machine.
        told: Of the worker-seconds of runs, what processes have said of them so far. It only grows.
    """

    name = "ledger"

    def __init__(self, clock: Clock, machines: HostMachines | None = None) -> None:
        self.clock = clock
        self.totals = PoolTotals()
        self._machines = HostMachines(clock) if machines is None else machines
        self._sums = HourlySums[_Spent](clock)
        self._workers: dict[JobName, _Workers] = {}
        self._heard: dict[JobName, _Heard] = {}
        self._counted = Counter[tuple[str, Account]]()
        self.told = Counter[tuple[str, Account]]()

    def begin(self, jobs: Iterable[SupervisedJob]) -> None:
        """Starts from the stored jobs. What they did before was counted by the supervisor that led then."""
        self._sums.put(NOBODY, {(Account.TRAINING, None): 1})
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
                self._workers.pop(before.name, None)
                self._machines.forget(before.name)

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
            for on, workers in stretch.workers.items():
                on_machine: Mapping[_Spent, float] = {(account, on): part for account, part in shares.items()}
                self._sums.move(stretch.hour, (Account.UNMEASURED, on), on_machine, workers * told)
            told_seconds = sum(stretch.workers.values()) * told
            self.told.update(
                {(namespace(worker.job.name), account): told_seconds * part for account, part in shares.items()}
            )
            left -= told
            stretch.seconds -= told
            if stretch.seconds <= 0:
                heard.untold.pop()

    def waiting(self) -> LedgerChanges:
        """Counts until now, and returns the hours that have changed since they were written, whole.

        Machines that are not known yet, because their agent or pod was not there, are looked at again.
        """
        for job in self._sums.jobs:
            self._count(job)
        for workers in [*self._workers.values()]:
            machines = self._machines.of(workers.job)
            if machines is not workers.machines:
                self._set(replace(workers, machines=machines))
        return LedgerChanges(self._sums.waiting())

    def counted(self) -> TotalTime:
        """Counts until now, and returns all worker-seconds so far; those of runs are unmeasured. They only grow."""
        for job in self._sums.jobs:
            self._count(job)
        return dict(self._counted)

    def written(self, changes: LedgerChanges) -> None:
        """Hears that hours were written as `waiting` has returned them."""
        self._sums.written(changes.counted)

    def _put(self, job: SupervisedJob) -> None:
        lacking = {account: number for account, number in workers_by_account(job).items() if account not in HELD}
        self._set(_Workers(job, hosts_by_account(job), lacking, self._machines.of(job)))
        self._heard.setdefault(job.name, _Heard())

    def _set(self, workers: _Workers) -> None:
        self._workers[workers.job.name] = workers
        self._sums.put(workers.job.name, workers.counted())

    def _count(self, job: JobName) -> None:
        heard = self._heard.get(job)
        for hour, workers, seconds in self._sums.count(job):
            running = {on: number for (account, on), number in workers.items() if account is Account.UNMEASURED and on}
            if job != NOBODY:
                for (account, on), number in workers.items():
                    self._counted[namespace(job), account] += number * seconds  # type: ignore[assignment]
                    if on is not None:
                        self.totals.add_held(on, number * seconds)
            if heard is not None and running:
                _extend(heard.untold, hour, running, seconds)


def _extend(untold: deque[_Stretch], hour: LedgerHour, workers: Mapping[HeldOn, int], seconds: float) -> None:
    """Adds seconds at the end, to the last stretch if that is like them."""
    last = untold[-1] if untold else None
    if last is not None and (last.hour, last.workers) == (hour, workers):
        last.seconds += seconds
    else:
        untold.append(_Stretch(hour, workers, seconds))
