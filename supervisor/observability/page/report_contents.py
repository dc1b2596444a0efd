"""Selects what the report's page shows of the ledger, and computes its bars. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from supervisor.domain.capacity import MachinePool
from supervisor.domain.ids import Host, JobName
from supervisor.domain.ledger import HELD, WANTED, Account
from supervisor.domain.stays import HostStay
from supervisor.domain.worker_time import HourlyTime, WorkerTime, share
from supervisor.observability.page.contents import MAX_ROWS
from supervisor.observability.views import CapacityView, LedgerJobView, LedgerView

_IDLE = tuple(each for each in HELD if each not in (Account.TRAINING, Account.UNMEASURED))
PARTS: Mapping[str, tuple[str, Sequence[Account]]] = {
    "trained": ("trained", (Account.TRAINING,)),
    "unmeasured": ("not known", (Account.UNMEASURED,)),
    "idle": ("held, and did not train", _IDLE),
    "lacked": ("not held", tuple(each for each in WANTED if each not in HELD)),
}
"""The parts of a bar, from its beginning, each with its name and its accounts. Together they are what was wanted."""

_MEANINGS: Mapping[Account, str] = {
    Account.TRAINING: "made steps, none of which was made before",
    Account.REPEATING: "made steps again that were lost",
    Account.SAVING: "saved a checkpoint, and made no steps meanwhile",
    Account.AGREEING: "waited at an agreed step for the other ranks",
    Account.CHANGING: "changed hosts while the processes lived on",
    Account.UNMEASURED: "ran, and no process said what it did",
    Account.LEAVING: "was left out already, because its host would be reclaimed",
    Account.JOINING: "was there, and not taken in yet",
    Account.STOPPING: "saved and ended, until its host was free",
    Account.STARTING: "was held, and no process had made a step yet",
    Account.MISSING: "was asked for and not there, while others of the job were held",
    Account.WAITING: "was asked for, and the job held none",
    Account.QUEUED: "was held back by its queue",
    Account.PAUSED: "was suspended by a person",
}


@dataclass(frozen=True, slots=True)
class SpentTime:
    """The records of a span: `found` has the whole of each job, and `hourly` the hours of one job or of all.

    `seen` has the hosts that were there for that one job. It is None if the page is about all jobs.
    """

    found: LedgerView
    hourly: HourlyTime
    seen: CapacityView | None = None

    def has(self, job: str) -> bool:
        """Whether anything is known of a job; without a name, of all of them together, it is."""
        return not job or any(each.job == job for each in self.found.jobs)


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar: its class in the style sheet, where it begins and how long it is, of 100."""

    key: str
    at: float
    length: float


@dataclass(frozen=True, slots=True)
class JobRow:
    """The time of one job, or of several that have no row of their own; these have no name."""

    job: JobName
    time: WorkerTime
    bar: Sequence[BarPart]


@dataclass(frozen=True, slots=True)
class AccountRow:
    """The time of one account. `share` is its part of what was wanted; it is None for an account that was not."""

    account: Account
    meaning: str
    seconds: float
    share: float | None


@dataclass(frozen=True, slots=True)
class ChartColumn:
    """A stretch of time from an instant; the bar is of the most that was wanted in any."""

    begins: float
    time: WorkerTime
    bar: Sequence[BarPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRow:
    """A kind of machine; unknown fields are empty. `gpu_seconds`: None if the GPUs of some workers are not known."""

    cloud: str
    zone: str
    instance_type: str
    price_class: str
    worker_seconds: float
    gpu_seconds: float | None

    @property
    def pool(self) -> str:
        """The name of its capacity pool; empty if it has none."""
        return MachinePool.name_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """A host that was there for a job. The bar is of the whole span; its parts are `there` and `noticed`."""

    host: Host
    seconds: float
    notices: int
    gone: int
    bar: Sequence[BarPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContents:
    """The rows and bars of the page. Jobs and machines are in the order of their time, the largest first.

    `uncounted` is as in `LedgerView`. `hosts_cut` says whether the earliest stays of hosts are left out.
    """

    total: WorkerTime
    jobs: Sequence[JobRow]
    more: int
    accounts: Sequence[AccountRow]
    columns: Sequence[ChartColumn]
    machines: Sequence[MachineRow]
    more_machines: int
    hosts: Sequence[HostRow]
    more_hosts: int
    hosts_cut: bool
    uncounted: float | None


def report_contents(spent: SpentTime, job: str, column_seconds: float) -> ReportContents:
    """Returns what the page shows of one job, or of all if `job` is empty."""
    found = spent.found
    meant = [each for each in found.jobs if not job or each.job == job]
    total = WorkerTime.of(each.worker_seconds for each in meant)
    rows = sorted((_row(each.job, [each]) for each in meant), key=lambda row: -row.time.wanted)
    rest = {row.job for row in rows[MAX_ROWS:]}
    shown = rows[:MAX_ROWS]
    if rest:
        shown.append(_row(JobName(""), [each for each in meant if each.job in rest]))
    machines = _machines(meant)
    hosts = [] if spent.seen is None else _hosts(spent.seen)
    return ReportContents(
        total=total,
        jobs=shown,
        more=len(rest),
        accounts=[_account(account, total) for account in Account if total.spent(account) > 0],
        columns=_columns(spent.hourly, column_seconds),
        machines=machines[:MAX_ROWS],
        more_machines=max(0, len(machines) - MAX_ROWS),
        hosts=hosts[:MAX_ROWS],
        more_hosts=max(0, len(hosts) - MAX_ROWS),
        hosts_cut=spent.seen is not None and spent.seen.cut,
        uncounted=found.uncounted,
    )


def _row(name: JobName, jobs: Sequence[LedgerJobView]) -> JobRow:
    time = WorkerTime.of(each.worker_seconds for each in jobs)
    return JobRow(name, time, list(_bar(time, time.wanted)))


def _bar(time: WorkerTime, whole: float) -> Iterator[BarPart]:
    at = 0.0
    for key, (_, accounts) in PARTS.items():
        length = 100 * (share(time.spent(*accounts), whole) or 0.0)
        if length > 0:
            yield BarPart(key, at, length)
        at += length


def _account(account: Account, total: WorkerTime) -> AccountRow:
    seconds = total.spent(account)
    return AccountRow(account, _MEANINGS[account], seconds, share(seconds, total.wanted) if account in WANTED else None)


def _columns(hourly: HourlyTime, seconds: float) -> Sequence[ChartColumn]:
    """Returns a column for each stretch of so many seconds from the first hour on, also for one without anything."""
    if not hourly:
        return []
    times = {
        begins: WorkerTime.of(hourly[hour] for hour in hours)
        for begins, hours in groupby(sorted(hourly), lambda hour: hour // seconds * seconds)
    }
    most, count = max(time.wanted for time in times.values()), round((max(times) - min(times)) / seconds) + 1
    begins = [min(times) + number * seconds for number in range(count)]
    filled = [(each, times.get(each, WorkerTime({}))) for each in begins]
    return [ChartColumn(each, time, list(_bar(time, most))) for each, time in filled]


def _hosts(seen: CapacityView) -> Sequence[HostRow]:
    """Returns the hosts, those with a notice first, in the order in which the first of it came."""
    stays: dict[Host, list[HostStay]] = {}
    for stay in seen.stays:
        stays.setdefault(stay.host, []).append(stay)
    return [
        HostRow(
            host=host,
            seconds=sum((stay.ends or seen.until) - max(stay.begins, seen.since) for stay in found),
            # A notice goes on over two stays if another supervisor has begun to lead, or the job has wanted nothing.
            notices=len({(stay.noticed, stay.deadline) for stay in found if stay.noticed is not None}),
            gone=sum(stay.gone for stay in found),
            bar=[part for stay in found for part in _stay_parts(stay, seen.since, seen.until)],
        )
        for host, found in sorted(stays.items(), key=lambda each: (_first_notice(each[1]), each[0]))
    ]


def _first_notice(stays: Sequence[HostStay]) -> float:
    return min((stay.noticed for stay in stays if stay.noticed is not None), default=math.inf)


def _stay_parts(stay: HostStay, since: float, until: float) -> Iterator[BarPart]:
    """Yields the time before the notice of a stay, and the time after it."""
    ends = min(until, stay.ends or until)
    begins = min(ends, max(since, stay.begins))
    noticed = ends if stay.noticed is None else min(ends, max(begins, stay.noticed))
    for key, at, end in (("there", begins, noticed), ("noticed", noticed, ends)):
        if end > at:
            yield BarPart(key, 100 * (at - since) / (until - since), 100 * (end - at) / (until - since))


def _machines(jobs: Sequence[LedgerJobView]) -> Sequence[MachineRow]:
    held = dict[tuple[str, str, str, str], float]()
    gpus = dict[tuple[str, str, str, str], float | None]()
    for on in (machine for job in jobs for machine in job.machines):
        kind = (on.cloud, on.zone, on.instance_type, on.price_class)
        held[kind] = held.get(kind, 0.0) + on.worker_seconds
        known = gpus.get(kind, 0.0)
        gpus[kind] = None if known is None or on.gpus is None else known + on.gpus * on.worker_seconds
    return [
        MachineRow(
            cloud=kind[0],
            zone=kind[1],
            instance_type=kind[2],
            price_class=kind[3],
            worker_seconds=seconds,
            gpu_seconds=gpus[kind],
        )
        for kind, seconds in sorted(held.items(), key=lambda each: -each[1])
    ]
