"""Implements `report`: where the worker-hours of jobs went, in shares of what the jobs wanted."""

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from job_supervisor.cli import pricing
from job_supervisor.cli.backend import Backend, short_names
from job_supervisor.cli.compared import compared
from job_supervisor.cli.errors import CliExitCode, UnknownError
from job_supervisor.cli.output import Block, Table, duration, job_names, show
from job_supervisor.cli.shares import ShareRange, percent, share
from supervisor.domain.ids import JobName, namespace
from supervisor.domain.ledger import HELD, WANTED, Account
from supervisor.observability.views import LedgerJobView, LedgerView

_HOUR = 3600.0
_UNCOUNTED_SECONDS = 60.0
"""A gap that is worth a sentence: a failover takes seconds."""

_NOT_WANTED = tuple(account for account in Account if account not in WANTED)
_UNMEASURED = "No process has said what unmeasured workers did: they may have trained, saved, or made steps again."
_ALWAYS_SHOWN = (Account.TRAINING,)


@dataclass(frozen=True, slots=True)
class WorkerTime:
    """The worker-seconds of a job, or of several, by account."""

    seconds: Mapping[str, float]

    @classmethod
    def of(cls, jobs: Sequence[LedgerJobView]) -> "WorkerTime":
        total = Counter[str]()
        for job in jobs:
            total.update(job.worker_seconds)
        return cls(total)

    def spent(self, *accounts: Account) -> float:
        """Returns the worker-seconds of these accounts together."""
        return sum(self.seconds.get(account, 0.0) for account in accounts)

    @property
    def wanted(self) -> float:
        """The worker-seconds that the jobs could have used, while no queue and no person held them back."""
        return self.spent(*WANTED)

    @property
    def scheduling(self) -> float | None:
        """The share of what they wanted that they held; None if they wanted nothing."""
        return share(self.spent(*HELD), self.wanted)

    @property
    def runtime(self) -> ShareRange | None:
        """The share of what they held that trained; None if they held nothing."""
        return self._trained(self.spent(*HELD))

    @property
    def ratio(self) -> ShareRange | None:
        """The share of what they wanted that trained, the product of both; None if they wanted nothing."""
        return self._trained(self.wanted)

    def _trained(self, whole: float) -> ShareRange | None:
        least, most = self.spent(Account.TRAINING), self.spent(Account.TRAINING, Account.UNMEASURED)
        return ShareRange(least / whole, most / whole) if whole else None


async def report(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    prices = None if given.prices is None else pricing.read_prices(given.prices)
    found = await backend.ledger(given.since, given.until)
    jobs = [job for job in found.jobs if _is_meant(job.job, given)]
    if given.job is not None and not jobs:
        raise UnknownError(f"The ledger has no job {given.job} in that time. Without a name, `report` lists all.")
    jobs.sort(key=lambda job: -WorkerTime.of([job]).wanted)
    beside, comparison = await _beside(backend, found, jobs, given)
    spent = pricing.costs(jobs, prices)
    if given.output.for_people:
        total = WorkerTime.of(jobs)
        trained, unmeasured = total.spent(Account.TRAINING), total.spent(Account.UNMEASURED)
        is_wanted = bool(spent) and (prices is not None or given.output.wide)
        held = pricing.for_people(spent, prices, trained, unmeasured) if is_wanted else []
        show(*_for_people(found, jobs, given.limit), *held, *beside)
    else:
        value = {**_for_programs(found, jobs), **pricing.for_programs(spent, prices), "comparison": comparison}
        given.output.value(value, job_names([job.job for job in jobs]))
    return CliExitCode.DONE


async def _beside(
    backend: Backend, found: LedgerView, jobs: Sequence[LedgerJobView], given: argparse.Namespace
) -> tuple[list[Block], object]:
    """Returns what the same reclaims would have cost one job with other policies, for people and for programs."""
    if given.job is None or len(jobs) != 1:
        hint = "`report JOB` compares one job with other ways to handle the same reclaims."
        return (["", hint] if jobs else []), None
    [job] = jobs
    time_of = WorkerTime.of(jobs)
    seen = await backend.capacity(job.job, found.since, found.until)
    return await compared(seen, time_of.wanted, time_of.spent(Account.TRAINING), time_of.spent(Account.UNMEASURED))


def _is_meant(job: JobName, given: argparse.Namespace) -> bool:
    if given.namespace and namespace(job) != given.namespace:
        return False
    return given.job is None or given.job == job or given.job in short_names(job)


def _for_programs(found: LedgerView, jobs: Sequence[LedgerJobView]) -> Mapping[str, object]:
    """Returns the worker-seconds as they are, and what follows from them."""
    return {
        "since": found.since,
        "until": found.until,
        "counted_seconds": found.counted_seconds,
        "jobs": [{"job": job.job, **_figures(WorkerTime.of([job]))} for job in jobs],
        "total": _figures(WorkerTime.of(jobs)),
    }


def _figures(time_of: WorkerTime) -> Mapping[str, object]:
    return {
        "worker_seconds": {account: time_of.spent(account) for account in Account},
        "scheduling_goodput": time_of.scheduling,
        "runtime_goodput": asdict(time_of.runtime) if time_of.runtime else None,
        "effective_training_time_ratio": asdict(time_of.ratio) if time_of.ratio else None,
    }


def _for_people(found: LedgerView, jobs: Sequence[LedgerJobView], limit: int) -> list[Block]:
    span = found.until - found.since
    told: list[Block] = [_sentence(WorkerTime.of(jobs), _when(found)), ""]
    if jobs:
        total = WorkerTime.of(jobs)
        listed = {str(job.job): WorkerTime.of([job]) for job in jobs[:limit]}
        rest = jobs[limit:]
        if rest:
            listed[f"{len(rest)} more"] = WorkerTime.of(rest)
        if len(jobs) > 1:
            listed["all"] = total
        shown = [account for account in Account if account in _ALWAYS_SHOWN or total.spent(account) > 0]
        shown.sort(key=_NOT_WANTED.__contains__)
        heads = ("JOB", "WANTED", *(account.upper() for account in shown))
        told.append(Table(heads, [_row(name, time_of, shown) for name, time_of in listed.items()]))
        if Account.UNMEASURED in shown:
            told += ["", _UNMEASURED]
    uncounted = span - found.counted_seconds
    if uncounted > _UNCOUNTED_SECONDS:
        told.append(f"For {duration(uncounted)} of that time no supervisor has counted, and nothing is known.")
    return told


def _when(found: LedgerView) -> str:
    """Says which time a report is of, in the words that begin a sentence."""
    span = duration(found.until - found.since)
    if time.time() - found.until < _HOUR:
        return f"In the last {span}"
    return f"In the {span} until {datetime.fromtimestamp(found.until).astimezone():%Y-%m-%d %H:%M}"


def _sentence(total: WorkerTime, when: str) -> str:
    """Sums up for a reader who wants one sentence."""
    if total.ratio is None:
        return f"{when}, no job wanted workers."
    wanted = f"{when}, jobs wanted {_hours(total.wanted)} of workers"
    if total.runtime is None:
        return f"{wanted}, and held none."
    return (
        f"{wanted} and held {percent(total.scheduling)} of them, of which {total.runtime} trained: "
        f"{total.ratio} together."
    )


def _row(name: str, time_of: WorkerTime, shown: Sequence[Account]) -> tuple[str, ...]:
    """Returns the shares of what was wanted, which add up to 100 %, and the hours beside it."""
    cells = (
        _hours(time_of.spent(account))
        if account in _NOT_WANTED
        else percent(share(time_of.spent(account), time_of.wanted))
        for account in shown
    )
    return (name, _hours(time_of.wanted), *cells)


def _hours(seconds: float) -> str:
    return f"{seconds / _HOUR:,.1f} h"
