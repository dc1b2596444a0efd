"""Implements `status`, `explain`, `history` and `nodes`: reads the status and prints it in the chosen form."""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from job_supervisor.cli.backend import Backend, PastEntry, SeenStatus
from job_supervisor.cli.errors import CliExitCode, CliUsageError, NotNowError, UnknownError, UnreachableError
from job_supervisor.cli.explain import explain, going, has_ended, is_drained, source_label
from job_supervisor.cli.history import history_of, horizon
from job_supervisor.cli.output import Block, Output, Table, age, complain, duration, job_names, show
from supervisor.domain.capacity import PriceClass
from supervisor.domain.ids import JobName, namespace
from supervisor.domain.notice import SubjectKind
from supervisor.observability.views import AgentView, JobView, MachineView

_MAX_NAMES = 10
_NONE = "-"

_AGENT_STATES = {
    "connected": "The agent is connected.",
    "reclaimed": "The agent is silent, as its node was reclaimed.",
    "unknown": "The agent is silent: nobody can say whether the node will be reclaimed.",
}


def overview(status: SeenStatus, *, wide: bool = False, namespace: str = "") -> list[Block]:
    """Makes the tables of `status`. Without `namespace`, the jobs of a cluster have a column with their namespace."""
    spaces = not namespace and any("/" in job.job for job in status.jobs)
    jobs: Block = "No jobs."
    if status.jobs:
        heads = (*(("NAMESPACE",) if spaces else ()), "JOB", "PHASE", "RUN", "WORKERS", "EXCLUDED", "AGE")
        heads = (*heads, *(("MIN", "MAX", "REQUESTED", "IN PHASE") if wide else ()), "REASON")
        ordered = sorted(status.jobs, key=lambda job: job.job)
        jobs = Table(heads, [_job_row(job, wide=wide, spaces=spaces) for job in ordered], whole=wide)
    return [jobs, "", _notices(status, wide=wide), "", *_agents(status), *status.limits]


def _job_row(job: JobView, *, wide: bool, spaces: bool) -> tuple[str, ...]:
    space, _, name = job.job.rpartition("/")
    numbers = (job.run, len(job.workers), len(job.exclusions))
    limits = (job.min_workers, job.max_workers, job.requested_workers)
    more = (*map(str, limits), age(job.since_seconds)) if wide else ()
    # For a waiting job what it lacks, as the reason says why it stopped.
    reason = job.reason
    if job.waits_for:
        reason = job.waits_for
    elif job.shortfall and job.phase == "Running":
        reason = f"{job.reason} {job.shortfall}"
    elif job.phase == "Suspended" and job.request is None and job.prospects:
        reason = f"{job.prospects[0].what[:1].upper()}{job.prospects[0].what[1:]}."
    named = (space or _NONE, name) if spaces else (name,)
    return (*named, job.phase, *map(str, numbers), age(job.age_seconds), *more, reason)


def _notices(status: SeenStatus, *, wide: bool) -> Block:
    active = status.active
    if not active:
        return "No reclaim notices."
    active.sort(key=lambda notice: (notice.seconds_left is None, notice.seconds_left or 0.0, notice.subject))
    rows = []
    for notice in active:
        left = "unknown" if notice.seconds_left is None else duration(notice.seconds_left)
        is_stored = all(notice is not one for one in status.unconfirmed)
        rows.append(
            (
                f"{notice.kind}/{notice.subject}",
                "drained" if is_drained(notice) else left,
                source_label(notice) if is_stored else f"{source_label(notice)} (not stored yet)",
                age(notice.age_seconds),
                ",".join(notice.jobs) or _NONE,
                notice.message,
            )
        )
    return Table(("SUBJECT", "IN", "SOURCE", "AGE", "JOBS", "MESSAGE"), rows, whole=wide)


def _agents(status: SeenStatus) -> Iterator[str]:
    if status.agents is None:
        return
    connected = sum(agent.connected for agent in status.agents)
    unknown = sorted(agent.node for agent in status.agents if not agent.connected and not agent.reclaimed)
    reclaimed = sorted(agent.node for agent in status.agents if agent.reclaimed)
    silent = "".join(
        f"; {state}: {_names(names)}" for state, names in (("unknown", unknown), ("reclaimed", reclaimed)) if names
    )
    yield f"{connected} {'agent is' if connected == 1 else 'agents are'} connected{silent}."
    sharing = sorted(agent.node for agent in status.agents if agent.same_uid)
    if sharing:
        yield f"These nodes share a machine uid with another node: {_names(sharing)}."


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one node. `agent` is connected, unknown (silent) or reclaimed, or None if no agents can be seen.

    `drained`: a person has drained it, and the time that jobs had to leave it is over.
    """

    node: str
    agent: str | None
    silent_seconds: float | None
    sources: dict[str, str]
    seconds_left: float | None
    notices: list[str]
    jobs: list[JobName]
    machine: MachineView | None
    drained: bool = False


def nodes_of(status: SeenStatus) -> list[NodeRow]:
    """Returns all nodes that an agent, a notice or a host of a job names, sorted by name."""
    agents: Mapping[str, AgentView] = {agent.node: agent for agent in status.agents or ()}
    noticed = {notice.subject for notice in status.active if notice.kind is SubjectKind.NODE}
    hosts = {host.node or host.host for job in status.jobs for host in status.hosts_of(job)}
    rows = []
    for name in sorted({*agents, *noticed, *hosts}):
        agent = agents.get(name)
        notices = [each for each in status.active if (each.kind, each.subject) == (SubjectKind.NODE, name)]
        lefts = [each.seconds_left for each in notices if each.seconds_left is not None and not is_drained(each)]
        rows.append(
            NodeRow(
                node=name,
                agent=None if status.agents is None else "none" if agent is None else _agent_state(agent),
                silent_seconds=None if agent is None else agent.silent_seconds,
                sources={} if agent is None else {each.source: each.state for each in agent.sources},
                seconds_left=min(lefts, default=None),
                notices=[source_label(each) for each in notices],
                jobs=[job.job for job in status.concerned(SubjectKind.NODE, name)],
                machine=None if agent is None else agent.machine,
                drained=any(is_drained(each) for each in notices),
            )
        )
    return rows


def _agent_state(agent: AgentView) -> str:
    if agent.connected:
        return "connected"
    return "reclaimed" if agent.reclaimed else "unknown"


def nodes_table(nodes: Sequence[NodeRow], *, wide: bool) -> list[Block]:
    if not nodes:
        return ["No nodes."]
    machines = wide or any(node.machine is not None for node in nodes)
    heads = ("NODE", "AGENT", "SILENT", "SOURCES", "NOTICE", *(("TYPE", "ZONE", "PRICE") if machines else ()), "JOBS")
    rows = []
    for node in nodes:
        left = "drained" if node.drained else "unknown"
        left = left if node.seconds_left is None else age(node.seconds_left)
        machine = node.machine or MachineView()
        price = machine.price_class if machine.price_class != PriceClass.UNKNOWN else ""
        kind = (machine.instance_type or _NONE, machine.zone or _NONE, price or _NONE) if machines else ()
        rows.append(
            (
                node.node,
                node.agent or _NONE,
                age(node.silent_seconds),
                ",".join(f"{source}={state}" for source, state in node.sources.items()) or _NONE,
                f"{left} {','.join(node.notices)}" if node.notices else _NONE,
                *kind,
                ",".join(node.jobs) or _NONE,
            )
        )
    return [Table(heads, rows, whole=wide)]


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
    states = {agent.node: _agent_state(agent) for agent in (before.agents if before is not None else None) or ()}
    for agent in after.agents or ():
        state = _agent_state(agent)
        if state != states.get(agent.node, "connected" if before is None else ""):
            text = _AGENT_STATES[state]
            yield StatusChange(at=after.now, subject=f"agent/{agent.node}", what=state, text=text)


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
    """Reads the status, limited to the namespace and the labels of the arguments."""
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
            clock = datetime.fromtimestamp(event.at).astimezone().strftime("%H:%M:%S")
            show(f"{clock}  {event.subject}  {event.what}: {event.text}")
        else:
            output.value(event, [event.subject])


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
    rows = []
    for entry in entries:
        date = datetime.fromtimestamp(entry.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        rows.append((date, entry.subject, entry.what, entry.text))
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
    """Finds the job of that name.

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
