"""`status`, `explain`, `history` and `nodes`: reads the status and prints it in the chosen form."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from job_supervisor.cli.backend import Backend, PastEntry, SeenStatus
from job_supervisor.cli.errors import CliExitCode, CliUsageError, NotNowError, UnknownError, UnreachableError
from job_supervisor.cli.explain import explain
from job_supervisor.cli.history import history_of, horizon
from job_supervisor.cli.output import Block, Output, Table, complain, job_names, show
from job_supervisor.cli.overview import StatusChange, changes, nodes_of, nodes_table, overview
from supervisor.domain.ids import namespace
from supervisor.observability.views import JobView

_CLEAR = "\x1b[H\x1b[2J"
_AWAY = (NotNowError, UnreachableError)


async def status(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    if given.watch:
        return await _watch(backend, given)
    _show_status(await read_status(backend, given), given)
    with suppress(asyncio.CancelledError):  # Ctrl-C is how this ends.
        while given.live:
            await asyncio.sleep(given.interval)
            try:
                _show_status(await read_status(backend, given), given)
            except _AWAY as error:
                complain(str(error))
    return CliExitCode.DONE


async def read_status(backend: Backend, given: argparse.Namespace) -> SeenStatus:
    """The status, limited to the namespace and the labels of the arguments."""
    found = await backend.status()
    jobs = found.jobs
    if given.namespace:
        jobs = [job for job in jobs if namespace(job.job) == given.namespace]
    if getattr(given, "selector", ""):
        labelled = await backend.labelled(given.selector)
        jobs = [job for job in jobs if job.job in labelled]
    return msgspec.structs.replace(found, jobs=jobs)


def _show_status(found: SeenStatus, given: argparse.Namespace) -> None:
    output: Output = given.output
    if not output.for_people:
        output.value(found, job_names([job.job for job in found.jobs]))
        return
    if given.live and sys.stdout.isatty():
        sys.stdout.write(_CLEAR)
    show(*overview(found, wide=output.wide, namespace=given.namespace), *([""] if given.live else []))


async def _watch(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    before, away = None, ""
    with suppress(asyncio.CancelledError):  # Ctrl-C is how this ends.
        while True:
            try:
                now = await read_status(backend, given)
            except _AWAY as error:
                if before is None:
                    raise
                if str(error) != away:
                    away = str(error)
                    complain(away)
            else:
                away = ""
                _show_changes(before, now, given.output)
                before = now
            await asyncio.sleep(given.interval)
    return CliExitCode.DONE


def _show_changes(before: SeenStatus | None, now: SeenStatus, output: Output) -> None:
    found = list(changes(before, now))
    if before is None and not found and output.for_people:
        complain("No jobs and no reclaim notices yet. Each change will be a line here.")
    for event in found:
        if output.for_people:
            show(_event_line(event))
        else:
            output.value(event, [event.subject])


def _event_line(event: StatusChange) -> str:
    return f"{_clock(event.at)}  {event.subject}  {event.what}: {event.text}"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


def _date(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


async def explained(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    found = await read_status(backend, given)
    job = only(found, given.job)
    if given.output.for_people:
        show(*explain(job, found))
        return CliExitCode.DONE
    ids = {host.notice for host in found.hosts_of(job)}
    notices = [notice for key, notice in found.by_id.items() if key in ids]
    given.output.value({"job": job, "notices": notices, "unseen": found.unseen}, job_names([job.job]))
    return CliExitCode.DONE


async def history(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    found = await read_status(backend, given)
    job = None if given.job is None else only(found, given.job)
    past = await backend.past(found, None if job is None else job.job)
    entries, known = history_of(found, past, job), horizon(found, past)
    if given.output.for_people:
        show(*_history_table(entries, whole=given.output.wide), *known, *found.limits)
    else:
        value = {"entries": entries, "horizon": known, "unseen": found.unseen}
        given.output.value(value, [entry.subject for entry in entries])
    return CliExitCode.DONE


def _history_table(entries: Sequence[PastEntry], *, whole: bool) -> list[Block]:
    if not entries:
        return ["Nothing is known to have happened."]
    rows = [(_date(entry.at), entry.subject, entry.what, entry.text) for entry in entries]
    return [Table(("TIME", "SUBJECT", "WHAT", "WHY"), rows, whole=whole), ""]


async def nodes(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    found = await read_status(backend, given)
    known = nodes_of(found)
    if given.output.for_people:
        show(*nodes_table(known, wide=given.output.wide), *found.limits)
    else:
        given.output.value({"nodes": known, "unseen": found.unseen}, [f"node/{node.node}" for node in known])
    return CliExitCode.DONE


def only(found: SeenStatus, name: str) -> JobView:
    """The job of that name.

    Raises:
        UnknownError: There is none.
        CliUsageError: There are several.
    """
    jobs = list(found.find(name))
    if not jobs:
        raise UnknownError(f"There is no supervised job {name}. `job-supervisor status` lists all jobs.")
    if len(jobs) > 1:
        raise CliUsageError(f"{name} is ambiguous: {' or '.join(job.job for job in jobs)}. Use the full name.")
    return jobs[0]
