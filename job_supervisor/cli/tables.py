"""Makes the tables of `status` and `nodes`, of one cluster or of several, which then have a column for the cluster."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from job_supervisor.cli.backend import Readings, SeenStatus
from job_supervisor.cli.explain import is_drained, source_label
from job_supervisor.cli.output import Block, Table, age
from servicekit.wording import duration
from supervisor.domain.capacity import PriceClass
from supervisor.domain.ids import JobName
from supervisor.domain.notice import SubjectKind
from supervisor.observability.views import AgentView, JobView, MachineView, NoticeView

_MAX_NAMES = 10
_NONE = "-"

Row = tuple[str, ...]


def overview(found: Readings[SeenStatus], *, wide: bool = False, namespace: str = "") -> list[Block]:
    """Makes the tables of `status`. Without `namespace`, the jobs of a cluster have a column with their namespace."""
    spaces = not namespace and any("/" in job.job for _, status in found.found for job in status.jobs)
    heads = (*(("NAMESPACE",) if spaces else ()), "JOB", "PHASE", "RUN", "WORKERS", "EXCLUDED", "AGE")
    heads = (*heads, *(("MIN", "MAX", "REQUESTED", "IN PHASE") if wide else ()), "REASON")
    rows = [
        (cluster, _job_row(job, wide=wide, spaces=spaces))
        for cluster, status in found.found
        for job in sorted(status.jobs, key=lambda job: job.job)
    ]
    jobs = _table(found, heads, rows, wide=wide) if rows else "No jobs."
    agents = [line for _, status in found.found for line in _agents(status)]
    return [jobs, "", _notices(found, wide=wide), "", *agents, *limits(found)]


def limits(found: Readings[SeenStatus]) -> list[str]:
    """Returns in sentences what nobody can see from here."""
    return [f"Not visible: {limit}" for limit in found.limits(lambda status: status.unseen)]


def _table(found: Readings[SeenStatus], heads: Row, rows: Sequence[tuple[str, Row]], *, wide: bool) -> Table:
    """A table of rows with the name of their cluster, which is the first column if there are several."""
    if not found.named:
        return Table(heads, [row for _, row in rows], whole=wide)
    return Table(("CLUSTER", *heads), [(cluster, *row) for cluster, row in rows], whole=wide)


def _job_row(job: JobView, *, wide: bool, spaces: bool) -> tuple[str, ...]:
    space, _, name = job.job.rpartition("/")
    numbers = (job.run, len(job.workers), len(job.exclusions))
    limits = (job.min_workers, job.max_workers, job.requested_workers)
    more = (*map(str, limits), age(job.since_seconds)) if wide else ()
    # For a waiting job what it lacks, as the reason says why it stopped.
    reason = job.reason
    if job.waits_for:
        reason = job.waits_for
    elif job.lacks:
        reason = f"{job.reason} {job.lacks}"
    elif job.phase == "Suspended" and job.request is None and job.prospects:
        reason = f"{job.prospects[0].what[:1].upper()}{job.prospects[0].what[1:]}."
    named = (space or _NONE, name) if spaces else (name,)
    return (*named, job.phase, *map(str, numbers), age(job.age_seconds), *more, reason)


def _notices(found: Readings[SeenStatus], *, wide: bool) -> Block:
    active = [(cluster, status, notice) for cluster, status in found.found for notice in status.active]
    if not active:
        return "No reclaim notices."
    active.sort(key=lambda each: (each[2].seconds_left is None, each[2].seconds_left or 0.0, each[2].subject))
    rows = [(cluster, _notice_row(status, notice)) for cluster, status, notice in active]
    return _table(found, ("SUBJECT", "IN", "SOURCE", "AGE", "JOBS", "MESSAGE"), rows, wide=wide)


def _notice_row(status: SeenStatus, notice: NoticeView) -> Row:
    left = "unknown" if notice.seconds_left is None else duration(notice.seconds_left)
    if notice.overdue_seconds is not None:
        left = f"{duration(notice.overdue_seconds)} ago"
    is_stored = all(notice is not one for one in status.unconfirmed)
    return (
        f"{notice.kind}/{notice.subject}",
        "drained" if is_drained(notice) else left,
        source_label(notice) if is_stored else f"{source_label(notice)} (not stored yet)",
        age(notice.age_seconds),
        ",".join(notice.jobs) or _NONE,
        notice.message,
    )


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
                agent=None if status.agents is None else "none" if agent is None else agent_state(agent),
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


def agent_state(agent: AgentView) -> str:
    """Names the state of an agent: connected, reclaimed or unknown."""
    if agent.connected:
        return "connected"
    return "reclaimed" if agent.reclaimed else "unknown"


def nodes_table(found: Readings[SeenStatus], *, wide: bool) -> list[Block]:
    nodes = [(cluster, node) for cluster, status in found.found for node in nodes_of(status)]
    if not nodes:
        return ["No nodes."]
    machines = wide or any(node.machine is not None for _, node in nodes)
    heads = ("NODE", "AGENT", "SILENT", "SOURCES", "NOTICE", *(("TYPE", "ZONE", "PRICE") if machines else ()), "JOBS")
    rows = [(cluster, _node_row(node, machines=machines)) for cluster, node in nodes]
    return [_table(found, heads, rows, wide=wide)]


def _node_row(node: NodeRow, *, machines: bool) -> Row:
    left = "drained" if node.drained else "unknown"
    left = left if node.seconds_left is None else age(node.seconds_left)
    machine = node.machine or MachineView()
    price = machine.price_class if machine.price_class != PriceClass.UNKNOWN else ""
    kind = (machine.instance_type or _NONE, machine.zone or _NONE, price or _NONE) if machines else ()
    return (
        node.node,
        node.agent or _NONE,
        age(node.silent_seconds),
        ",".join(f"{source}={state}" for source, state in node.sources.items()) or _NONE,
        f"{left} {','.join(node.notices)}" if node.notices else _NONE,
        *kind,
        ",".join(node.jobs) or _NONE,
    )
