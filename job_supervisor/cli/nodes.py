"""`nodes`: each node with its agent, what its sources answer, its notices and its jobs."""

from collections.abc import Iterable, Sequence

import msgspec

from job_supervisor.cli.status import Status, is_drained, source_label
from job_supervisor.cli.table import Block, Table
from job_supervisor.cli.text import age
from supervisor.domain.capacity import PriceClass
from supervisor.domain.ids import JobName
from supervisor.domain.notice import SubjectKind
from supervisor.observability.views import AgentView, MachineView

_NONE = "-"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `agent` is connected, unknown (silent) or reclaimed; None where agents cannot be seen.

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


def nodes_of(status: Status) -> list[Node]:
    """All nodes that an agent, a notice or a host of a job names, by name."""
    agents: dict[str, AgentView] = {agent.node: agent for agent in status.agents or ()}
    noticed = {notice.subject for notice in status.active if notice.kind is SubjectKind.NODE}
    hosts = {host.node or host.host for job in status.jobs for host in status.hosts_of(job)}
    known = status.agents is not None
    return [_node(name, agents.get(name), status, known=known) for name in sorted({*agents, *noticed, *hosts})]


def _node(name: str, agent: AgentView | None, status: Status, *, known: bool) -> Node:
    notices = [each for each in status.active if (each.kind, each.subject) == (SubjectKind.NODE, name)]
    lefts = [each.seconds_left for each in notices if each.seconds_left is not None and not is_drained(each)]
    return Node(
        node=name,
        agent=_agent(agent) if known else None,
        silent_seconds=None if agent is None else agent.silent_seconds,
        sources={} if agent is None else {each.source: each.state for each in agent.sources},
        seconds_left=min(lefts, default=None),
        notices=[source_label(each) for each in notices],
        jobs=[job.job for job in status.concerned(SubjectKind.NODE, name)],
        machine=None if agent is None else agent.machine,
        drained=any(is_drained(each) for each in notices),
    )


def _agent(agent: AgentView | None) -> str:
    if agent is None:
        return "none"
    if agent.connected:
        return "connected"
    return "reclaimed" if agent.reclaimed else "unknown"


def nodes_table(nodes: Sequence[Node], *, wide: bool) -> list[Block]:
    if not nodes:
        return ["No nodes."]
    machines = wide or any(node.machine is not None for node in nodes)
    heads = ("NODE", "AGENT", "SILENT", "SOURCES", "NOTICE", *(("TYPE", "ZONE", "PRICE") if machines else ()), "JOBS")
    return [Table(heads, [_row(node, machines=machines) for node in nodes], whole=wide)]


def _row(node: Node, *, machines: bool) -> tuple[str, ...]:
    sources = _joined(f"{source}={state}" for source, state in node.sources.items())
    return (
        node.node,
        node.agent or _NONE,
        age(node.silent_seconds),
        sources,
        _notice(node),
        *(_machine(node.machine) if machines else ()),
        _joined(node.jobs),
    )


def _notice(node: Node) -> str:
    if not node.notices:
        return _NONE
    left = "drained" if node.drained else "unknown"
    left = left if node.seconds_left is None else age(node.seconds_left)
    return f"{left} {_joined(node.notices)}"


def _machine(machine: MachineView | None) -> tuple[str, str, str]:
    if machine is None:
        return _NONE, _NONE, _NONE
    price = machine.price_class if machine.price_class != PriceClass.UNKNOWN else ""
    return machine.instance_type or _NONE, machine.zone or _NONE, price or _NONE


def _joined(names: Iterable[str]) -> str:
    return ",".join(names) or _NONE
