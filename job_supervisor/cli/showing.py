"""Implements `status`, `explain`, `history` and `nodes`: reads the status and prints it in the chosen form."""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from job_supervisor.cli.backend import HUB, Clusters, PastEntry, PastQuery, ReadableBackend, Readings, SeenStatus
from job_supervisor.cli.errors import CliExitCode, CliUsageError, NotNowError, UnknownError, UnreachableError
from job_supervisor.cli.explain import explain, going, has_ended
from job_supervisor.cli.history import exported, history_of, horizon, selected
from job_supervisor.cli.output import Block, Output, Table, complain, job_names, show
from job_supervisor.cli.tables import agent_state, limits, nodes_of, nodes_table, overview
from supervisor.domain.ids import JobName, namespace
from supervisor.observability.views import JobView, NoticeView

_AGENT_STATES = {
    "connected": "The agent is connected.",
    "reclaimed": "The agent is silent, as its node was reclaimed.",
    "unknown": "The agent is silent: nobody can say whether the node will be reclaimed.",
}


class StatusChange(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one change. `at` is in Unix seconds.

    `subject` is `job/NAME`, `node/NAME`, `pod/NAMESPACE/NAME` or `agent/NODE`.
    """

    at: float
    subject: str
    what: str
    text: str


def changes(before: SeenStatus | None, after: SeenStatus) -> Iterator[StatusChange]:
    """Yields the changes since the last status; at first, all jobs, active notices and silent agents."""
    noticed = {} if before is None else before.by_id
    for key, notice in after.by_id.items():
        known = noticed.get(key)
        subject = f"{notice.kind}/{notice.subject}"
        if notice.active and (known is None or not known.active):
            sentence = going(notice)
            text = f"{sentence[:1].upper()}{sentence[1:]}."
            yield StatusChange(at=after.now, subject=subject, what="noticed", text=text)
        elif known is not None and known.active and not notice.active:
            yield StatusChange(at=after.now, subject=subject, what=notice.state.value, text=has_ended(notice))
    jobs = {} if before is None else {job.job: job for job in before.jobs}
    for job in after.jobs:
        old = jobs.pop(job.job, None)
        if old is None or (old.phase, old.reason, old.run, old.exclusions) != (
            job.phase,
            job.reason,
            job.run,
            job.exclusions,
        ):
            yield StatusChange(at=after.now, subject=f"job/{job.job}", what=job.phase, text=job.reason)
    for name in jobs:
        text = "The supervisor no longer knows it."
        yield StatusChange(at=after.now, subject=f"job/{name}", what="forgotten", text=text)
    # At the first look, connected agents are no news.
    states = {agent.node: agent_state(agent) for agent in (before.agents if before is not None else None) or ()}
    for agent in after.agents or ():
        state = agent_state(agent)
        if state != states.get(agent.node, "connected" if before is None else ""):
            text = _AGENT_STATES[state]
            yield StatusChange(at=after.now, subject=f"agent/{agent.node}", what=state, text=text)


_CLEAR = "\x1b[H\x1b[2J"
_AWAY = (NotNowError, UnreachableError)

StatusOfJob = tuple[str, SeenStatus, JobView]
"""A job with its cluster, and with the status of that cluster."""


async def status(clusters: Clusters, given: argparse.Namespace) -> CliExitCode:
    if given.watch:
        return await _watch(clusters, given)
    _show_status(await _read(clusters, given), given)
    with suppress(asyncio.CancelledError):  # Ctrl-C is how this ends.
        while given.live:
            await asyncio.sleep(given.interval)
            try:
                _show_status(await _read(clusters, given), given)
            except _AWAY as error:
                complain(str(error))
    return CliExitCode.DONE


async def read_status(backend: ReadableBackend, given: argparse.Namespace) -> SeenStatus:
    """Reads the status of one cluster, limited to the namespace and the labels of the arguments."""
    found = await backend.status()
    jobs = found.jobs
    if given.namespace:
        jobs = [job for job in jobs if namespace(job.job) == given.namespace]
    if getattr(given, "selector", ""):
        labelled = await backend.labelled(given.selector)
        jobs = [job for job in jobs if job.job in labelled]
    return msgspec.structs.replace(found, jobs=jobs, namespace=given.namespace or found.namespace)


async def _read(clusters: Clusters, given: argparse.Namespace) -> Readings[SeenStatus]:
    return await clusters.each(lambda backend: read_status(backend, given))


def _show_status(found: Readings[SeenStatus], given: argparse.Namespace) -> None:
    output: Output = given.output
    if not output.for_people:
        output.value(_status_value(found), job_names([job.job for _, status in found.found for job in status.jobs]))
        return
    if given.live and sys.stdout.isatty():
        sys.stdout.write(_CLEAR)
    show(*overview(found, wide=output.wide, namespace=given.namespace), *([""] if given.live else []))


def _status_value(found: Readings[SeenStatus]) -> object:
    """The status for programs: that of the only cluster, or of all in the same form."""
    if not found.named:
        return found.found[0][1]
    parts = ("jobs", "notices", "unconfirmed", "groups")
    lists = {
        part: [_in_cluster(cluster, each) for cluster, status in found.found for each in getattr(status, part)]
        for part in parts
    }
    now = max(status.now for _, status in found.found)
    unseen = found.limits(lambda status: status.unseen)
    return {"now": now, **lists, "agents": None, "leader": None, "unseen": unseen}


def _in_cluster(cluster: str, value: object) -> object:
    """The value for programs, with its cluster if there are several."""
    return {"cluster": cluster, **msgspec.to_builtins(value)} if cluster else value


async def _watch(clusters: Clusters, given: argparse.Namespace) -> CliExitCode:
    before: dict[str, SeenStatus] | None = None
    away: Sequence[str] = ()
    with suppress(asyncio.CancelledError):  # Ctrl-C is how this ends.
        while True:
            try:
                now = await _read(clusters, given)
            except _AWAY as error:
                if before is None:
                    raise
                now = Readings((), [str(error)])
            if now.unseen != away:
                away = now.unseen
                complain(*away)
            if now.found:
                _show_changes(before, now, given.output)
                # A cluster that cannot be read now is compared with its last status when it can.
                before = {**(before or {}), **dict(now.found)}
            await asyncio.sleep(given.interval)
    return CliExitCode.DONE


def _show_changes(before: Mapping[str, SeenStatus] | None, now: Readings[SeenStatus], output: Output) -> None:
    known = before or {}
    found = [(cluster, each) for cluster, status in now.found for each in changes(known.get(cluster), status)]
    if before is None and not found and output.for_people:
        complain("No jobs and no reclaim notices yet. Each change will be a line here.")
    for cluster, event in found:
        if output.for_people:
            clock = datetime.fromtimestamp(event.at).astimezone().strftime("%H:%M:%S")
            where = f"{cluster}  " if cluster else ""
            show(f"{clock}  {where}{event.subject}  {event.what}: {event.text}")
        else:
            output.value(_in_cluster(cluster, event), [event.subject])


async def explained(clusters: Clusters, given: argparse.Namespace) -> CliExitCode:
    found = await _read(clusters, given)
    jobs = _jobs_named(found, given.job)
    if given.output.for_people:
        show(*_explanations(jobs), *[f"Not visible: {each}" for each in found.unseen])
        return CliExitCode.DONE
    values = [{"job": _in_cluster(cluster, job), "notices": _notices_of(job, status)} for cluster, status, job in jobs]
    unseen = found.limits(lambda status: status.unseen)
    value: object = {"jobs": values, "unseen": unseen} if found.named else {**values[0], "unseen": unseen}
    given.output.value(value, job_names([job.job for _, _, job in jobs]))
    return CliExitCode.DONE


def _explanations(jobs: Sequence[StatusOfJob]) -> Iterator[Block]:
    """Explains a job in each cluster that has it."""
    for number, (cluster, status, job) in enumerate(jobs):
        if cluster:
            yield from ([""] if number else [])
            yield "At the hub:" if cluster == HUB else f"In cluster {cluster}:"
        yield from explain(job, status)


def _notices_of(job: JobView, status: SeenStatus) -> list[NoticeView]:
    ids = {host.notice for host in status.hosts_of(job)}
    return [notice for key, notice in status.by_id.items() if key in ids]


class _ClusterPast(msgspec.Struct, frozen=True):
    """The known past of one cluster. `has_job` is False if the cluster has no job of the name that was asked for."""

    entries: list[PastEntry]
    known: list[str]
    unseen: list[str]
    has_job: bool


async def history(clusters: Clusters, given: argparse.Namespace) -> CliExitCode:
    async def read(backend: ReadableBackend) -> _ClusterPast:
        found = await read_status(backend, given)
        job = None if given.job is None else _named(found, given.job)
        # The record also knows jobs that are gone, by their whole names.
        name = None if given.job is None else JobName(given.job) if job is None else job.job
        wanted = _past_query(given, name, found.now)
        past = await backend.past(found, wanted)
        entries = history_of(found, past, wanted)
        has_job = given.job is None or job is not None or bool(entries)
        return _ClusterPast(entries[-given.limit :], horizon(found, past), found.unseen, has_job=has_job)

    found = await clusters.each(read)
    if not any(past.has_job for _, past in found.found):
        raise _no_job(given.job, [line for _, past in found.found for line in past.unseen])
    entries = [(cluster, entry) for cluster, past in found.found for entry in past.entries]
    if found.named:
        entries.sort(key=lambda each: each[1].at)
    known = list(dict.fromkeys(line for _, past in found.found for line in past.known))
    unseen = found.limits(lambda past: past.unseen)
    if given.output.for_people:
        limits = (f"Not visible: {each}" for each in unseen)
        show(*_history_table(entries, named=found.named, whole=given.output.wide), *known, *limits)
    else:
        value = {"entries": [_in_cluster(*each) for each in entries], "horizon": known, "unseen": unseen}
        given.output.value(value, [entry.subject for _, entry in entries])
    return CliExitCode.DONE


def history_of_file(given: argparse.Namespace) -> CliExitCode:
    """Shows what an earlier `history -o json` has printed. `--since` counts back from its latest entry."""
    entries = exported(given.file)
    latest = entries[-1].at if entries else 0.0
    wanted = _past_query(given, None if given.job is None else JobName(given.job), latest)
    shown = selected(entries, wanted)[-given.limit :]
    if given.output.for_people:
        show(*_history_table([("", entry) for entry in shown], named=False, whole=given.output.wide))
    else:
        value = {"entries": msgspec.to_builtins(shown), "horizon": [], "unseen": []}
        given.output.value(value, [entry.subject for entry in shown])
    return CliExitCode.DONE


def _past_query(given: argparse.Namespace, job: JobName | None, now: float) -> PastQuery:
    return PastQuery(
        job=job,
        node=given.node,
        pool=given.pool,
        source=given.source,
        since=None if given.since is None else now - given.since,
        drills=given.drills,
        limit=given.limit,
    )


def _history_table(entries: Sequence[tuple[str, PastEntry]], *, named: bool, whole: bool) -> list[Block]:
    if not entries:
        return ["Nothing is known to have happened."]
    rows = []
    for cluster, entry in entries:
        date = datetime.fromtimestamp(entry.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        rows.append((*([cluster] if named else []), date, entry.subject, entry.what, entry.text))
    heads = (*(("CLUSTER",) if named else ()), "TIME", "SUBJECT", "WHAT", "WHY")
    return [Table(heads, rows, whole=whole), ""]


async def nodes(clusters: Clusters, given: argparse.Namespace) -> CliExitCode:
    found = await _read(clusters, given)
    if given.output.for_people:
        show(*nodes_table(found, wide=given.output.wide), *limits(found))
        return CliExitCode.DONE
    known = [(cluster, node) for cluster, status in found.found for node in nodes_of(status)]
    value = {"nodes": [_in_cluster(*each) for each in known], "unseen": found.limits(lambda status: status.unseen)}
    given.output.value(value, [f"node/{node.node}" for _, node in known])
    return CliExitCode.DONE


def _jobs_named(found: Readings[SeenStatus], name: str) -> Sequence[StatusOfJob]:
    """Finds the job of that name in each cluster that has it.

    Raises:
        UnknownError: None has it.
        CliUsageError: A cluster has several.
    """
    named = [(cluster, status, _named(status, name)) for cluster, status in found.found]
    jobs = [(cluster, status, job) for cluster, status, job in named if job is not None]
    if not jobs:
        raise _no_job(name, found.unseen)
    return jobs


def only(found: SeenStatus, name: str) -> JobView:
    """Finds the job of that name.

    Raises:
        UnknownError: There is none.
        CliUsageError: There are several.
    """
    job = _named(found, name)
    if job is None:
        raise _no_job(name)
    return job


def _named(found: SeenStatus, name: str) -> JobView | None:
    """Finds the job of that name in one cluster; None if there is none."""
    jobs = list(found.find(name))
    if len(jobs) > 1:
        raise CliUsageError(f"{name} is ambiguous: {' or '.join(job.job for job in jobs)}. Use the full name.")
    return jobs[0] if jobs else None


def _no_job(name: str, unseen: Sequence[str] = ()) -> UnknownError:
    sentences = (f"There is no supervised job {name}. `job-supervisor status` lists all jobs.", *unseen)
    return UnknownError(" Not visible: ".join(sentences))
