"""Implements `report`: where the worker-hours of jobs went, in shares of what the jobs wanted."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from job_supervisor.cli import pooling, pricing
from job_supervisor.cli.backend import Backend, short_names
from job_supervisor.cli.compared import compared
from job_supervisor.cli.errors import CliExitCode, CliUsageError, UnknownError
from job_supervisor.cli.output import Block, Table, job_names, show
from servicekit.wording import duration
from supervisor.domain.ids import JobName, kind_of, namespace
from supervisor.domain.ledger import WANTED, Account
from supervisor.domain.worker_time import WorkerTime, hours, percent, share
from supervisor.goodput.comparison import NOT_COMPARED, RecordedJob, gathered
from supervisor.observability.prices import PricesError, PriceTable, read_prices
from supervisor.observability.views import LedgerJobView, LedgerView

_HOUR = 3600.0
_JOB, _KIND, _POOL = "job", "kind", "pool"
_NOT_WANTED = tuple(account for account in Account if account not in WANTED)
_UNMEASURED = "No process has said what unmeasured workers did: they may have trained, saved, or made steps again."
_ALWAYS_SHOWN = (Account.TRAINING,)


class _OlderError(Exception):
    """The supervisor does not know which hosts were there."""


async def report(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    prices = None if given.prices is None else _prices(given.prices)
    found = await backend.ledger(given.since, given.until, by_pool=given.by == _POOL)
    jobs = [job for job in found.jobs if _is_meant(job.job, given)]
    if given.job is not None and not jobs:
        raise UnknownError(f"The ledger has no job {given.job} in that time. Without a name, `report` lists all.")
    jobs.sort(key=lambda job: -_time_of([job]).wanted)
    beside, comparison = await _beside(backend, found, jobs, given)
    spent = pricing.costs(jobs, prices)
    if given.output.for_people:
        total = _time_of(jobs)
        trained, unmeasured = total.spent(Account.TRAINING), total.spent(Account.UNMEASURED)
        is_wanted = bool(spent) and (prices is not None or given.output.wide)
        held = pricing.for_people(spent, prices, trained, unmeasured) if is_wanted else []
        show(_time_of(jobs).summary(_when(found)), "", *_table(jobs, given), *_unknown(found), *held, *beside)
    else:
        value = {**_for_programs(found, jobs), **pricing.for_programs(spent, prices), "comparison": comparison}
        if given.by == _POOL:
            value["pools"] = pooling.for_programs(pooling.pooled(jobs))
        elif given.by == _KIND:
            value["kinds"] = [{"kind": kind, **_figures(time_of)} for kind, time_of in _by_kind(jobs).items()]
        given.output.value(value, job_names([job.job for job in jobs]))
    return CliExitCode.DONE


def _prices(file: str) -> PriceTable:
    try:
        return read_prices(Path(file))
    except PricesError as error:
        raise CliUsageError(f"{error}.") from error


async def _beside(
    backend: Backend, found: LedgerView, jobs: Sequence[LedgerJobView], given: argparse.Namespace
) -> tuple[list[Block], object]:
    """Returns what the same reclaims would have cost with other policies, for people and for programs."""
    if not jobs or given.by != _JOB:
        return [], None
    if not given.compare and (given.job is None or len(jobs) != 1):
        hint = (
            "`report JOB` compares one job with other ways to handle the same reclaims, and `report --compare` all of "
            "these."
        )
        return ["", hint], None
    of = {each.job: _time_of([each]) for each in jobs}

    async def read(job: JobName) -> RecordedJob:
        seen = await backend.capacity(job, found.since, found.until)
        if seen is None:
            raise _OlderError
        return RecordedJob.of(seen, of[job])

    try:
        recorded = await gathered(list(of), read)
    except _OlderError:
        return ["", NOT_COMPARED.format(why="this supervisor is older than the command")], None
    return await compared(recorded)


def _time_of(jobs: Sequence[LedgerJobView]) -> WorkerTime:
    return WorkerTime.of(job.worker_seconds for job in jobs)


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
        "jobs": [{"job": job.job, **_figures(_time_of([job]))} for job in jobs],
        "total": _figures(_time_of(jobs)),
    }


def _figures(time_of: WorkerTime) -> Mapping[str, object]:
    return {
        "worker_seconds": {account: time_of.spent(account) for account in Account},
        "scheduling_goodput": time_of.scheduling,
        "runtime_goodput": asdict(time_of.runtime) if time_of.runtime else None,
        "effective_training_time_ratio": asdict(time_of.ratio) if time_of.ratio else None,
    }


def _table(jobs: Sequence[LedgerJobView], given: argparse.Namespace) -> list[Block]:
    """Returns a table with a row for each job, kind of job or pool, the largest first, and what it does not know."""
    if not jobs:
        return []
    told: list[Block]
    if given.by == _POOL:
        told = pooling.for_people(pooling.pooled(jobs), given.limit)
    else:
        rows = _by_kind(jobs) if given.by == _KIND else {str(job.job): _time_of([job]) for job in jobs}
        told = [_of_rows(given.by, rows, given.limit)]
    return [*told, "", _UNMEASURED] if _time_of(jobs).spent(Account.UNMEASURED) > 0 else told


def _of_rows(by: str, rows: Mapping[str, WorkerTime], limit: int) -> Table:
    names, total = list(rows), WorkerTime.of(time_of.seconds for time_of in rows.values())
    listed = {name: rows[name] for name in names[:limit]}
    if rest := names[limit:]:
        listed[f"{len(rest)} more"] = WorkerTime.of(rows[name].seconds for name in rest)
    if len(names) > 1:
        listed["all"] = total
    shown = [account for account in Account if account in _ALWAYS_SHOWN or total.spent(account) > 0]
    shown.sort(key=_NOT_WANTED.__contains__)
    heads = (by.upper(), "WANTED", *(account.upper() for account in shown))
    return Table(heads, [_row(name, time_of, shown) for name, time_of in listed.items()])


def _by_kind(jobs: Sequence[LedgerJobView]) -> Mapping[str, WorkerTime]:
    """Returns the time of the jobs of each kind, the largest first."""
    kinds: dict[str, list[LedgerJobView]] = {}
    for job in jobs:
        kinds.setdefault(kind_of(job.job), []).append(job)
    found = {kind: _time_of(of_kind) for kind, of_kind in kinds.items()}
    return dict(sorted(found.items(), key=lambda each: -each[1].wanted))


def _unknown(found: LedgerView) -> list[Block]:
    if found.uncounted is None:
        return []
    return [f"For {duration(found.uncounted)} of that time no supervisor has counted, and nothing is known."]


def _when(found: LedgerView) -> str:
    """Says which time a report is of, in the words that begin a sentence."""
    span = duration(found.until - found.since)
    if time.time() - found.until < _HOUR:
        return f"In the last {span}"
    return f"In the {span} until {datetime.fromtimestamp(found.until).astimezone():%Y-%m-%d %H:%M}"


def _row(name: str, time_of: WorkerTime, shown: Sequence[Account]) -> tuple[str, ...]:
    """Returns the shares of what was wanted, which add up to 100 %, and the hours beside it."""
    cells = (
        hours(time_of.spent(account))
        if account in _NOT_WANTED
        else percent(share(time_of.spent(account), time_of.wanted))
        for account in shown
    )
    return (name, hours(time_of.wanted), *cells)
