"""Selects what the pages of nodes show: all nodes with an agent, and one node. Pure."""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from supervisor.decide.urgency import deadline_of
from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine, MachinePool
from supervisor.domain.ids import Host, JobName
from supervisor.domain.notice import NoticeState, ReclaimNotice, SubjectKind
from supervisor.ingest.agent_registry import reclaimed
from supervisor.observability.page.past import Reclaim, reclaims_of
from supervisor.observability.page.tables import TableColumn, TableFilter, TableLayout
from supervisor.observability.status_view import PagedJob, StatusPage, StatusSnapshot, status_view, subject_key
from supervisor.observability.views import AgentView, HistoryView, HostView, JobView, NoticeView, StatusView

CONNECTED = "connected"
SILENT = "silent for an unknown reason"
RECLAIMED = "silent, because its node was reclaimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesRow:
    """A node with an agent.

    `silent_seconds` is None while the agent is connected. `used_by` are the jobs on it, in no order. `notice` is its
    most urgent notice, of which `seconds_left` are left, fewer than 0 if its time is over; both are None without one,
    and the latter if the source names no time.
    """

    node: Host
    state: str
    silent_seconds: float | None
    machine: Machine
    used_by: Collection[JobName]
    notice: ReclaimNotice | None
    seconds_left: float | None

    @property
    def jobs(self) -> Sequence[JobName]:
        """The jobs on it, by name. Of 10,000 rows a hundred are shown."""
        return sorted(self.used_by)

    @property
    def pool(self) -> str:
        """The name of the node's capacity pool; empty if it has none."""
        return self.machine.pool_name


def _passes(row: NodesRow, wanted: str) -> bool:
    match wanted:
        case "noticed":
            return row.notice is not None
        case "connected":
            return row.state == CONNECTED
    return row.state != CONNECTED


NODES: TableLayout[NodesRow] = TableLayout(
    columns={
        "node": TableColumn("Node", lambda row: row.node),
        "agent": TableColumn("Agent", lambda row: (row.state, -(row.silent_seconds or 0.0), row.node)),
        "type": TableColumn("Machine", lambda row: (row.machine.instance_type, row.node) if row.pool else None),
        "zone": TableColumn("Zone", lambda row: (row.machine.zone, row.node) if row.machine.zone else None),
        "price": TableColumn("Price", lambda row: (row.machine.price_class, row.node)),
        "jobs": TableColumn("Jobs", lambda row: (min(row.used_by), row.node) if row.used_by else None),
        "left": TableColumn(
            "Gone in",
            # A notice without a time comes after those with one, and before the nodes without a notice.
            lambda row: None if row.notice is None else (row.seconds_left is None, row.seconds_left or 0.0, row.node),
        ),
    },
    filters={
        "state": TableFilter(
            "which are",
            {"connected": "connected", "silent": "silent", "noticed": "noticed"},
            _passes,
        )
    },
    words=lambda row: " ".join(
        (
            row.node,
            MachinePool.label_of(row.machine),
            row.machine.price_class,
            *row.used_by,
            "" if row.notice is None else row.notice.source,
        )
    ),
)


def node_rows(snapshot: StatusSnapshot, pool: str | None = None) -> Iterator[NodesRow]:
    """Yields the nodes with an agent, all or those of one capacity pool."""
    gone = reclaimed(snapshot.notices, snapshot.agents, snapshot.silent.get)
    machines = {node: snapshot.machines.get(node, agent.machine) for node, agent in snapshot.agents.items()}
    if pool is not None:
        machines = {node: machine for node, machine in machines.items() if machine.pool_name == pool}
    jobs, notices = _jobs_by_node(snapshot, machines), _noticed(snapshot)
    for node, machine in machines.items():
        agent = snapshot.agents[node]
        notice = notices.get(node)
        heard = snapshot.heard.get(node, snapshot.silent.get(node))
        yield NodesRow(
            node=node,
            state=CONNECTED if agent.connected else RECLAIMED if node in gone else SILENT,
            silent_seconds=None if agent.connected or heard is None else max(0.0, snapshot.now - heard),
            machine=machine,
            used_by=jobs.get(node, ()),
            notice=notice,
            seconds_left=None if notice is None or notice.deadline is None else notice.deadline - snapshot.now,
        )


def _jobs_by_node(snapshot: StatusSnapshot, nodes: Container[Host]) -> Mapping[Host, Sequence[JobName]]:
    """Returns the jobs with a host on each of these nodes."""
    found: dict[Host, tuple[JobName, ...]] = {}
    for status in snapshot.jobs:
        name = status.job.name
        for host in status.job.own_hosts:
            node = status.node(host)
            if node in nodes:
                known = found.get(node, ())
                if name not in known:  # Two of its hosts may be on one node.
                    found[node] = (*known, name)
    return found


def _noticed(snapshot: StatusSnapshot) -> Mapping[Host, ReclaimNotice]:
    """Returns the most urgent active notice of each node."""
    found: dict[Host, ReclaimNotice] = {}
    for notice in (*snapshot.notices, *snapshot.unconfirmed):
        if notice.state is NoticeState.ACTIVE and notice.subject.kind is SubjectKind.NODE:
            node = Host(notice.subject.name)
            known = found.get(node)
            if known is None or deadline_of(notice, snapshot.policy) < deadline_of(known, snapshot.policy):
                found[node] = notice
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOnNode:
    """A host of a job that is on a node."""

    job: JobView
    host: HostView


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContents:
    """What the page of one node shows; `agent` is None if it has none. `past` is None if the record cannot be read.

    `state` is that of its row. `reclaims` are the notices that the record has of it, the latest first. `gone_seconds`:
    for how long its machine is gone, as its last notice says; None if its agent says otherwise, or nobody knows.
    """

    node: Host
    view: StatusView
    agent: AgentView | None
    state: str
    pool: str
    notices: Sequence[NoticeView]
    hosts: Sequence[HostOnNode]
    past: HistoryView | None
    reclaims: Sequence[Reclaim]
    gone_seconds: float | None

    @property
    def is_known(self) -> bool:
        """Whether anything is known of a node of this name."""
        return bool(self.agent or self.notices or self.hosts or self.past is None or self.past.entries)


def node_contents(snapshot: StatusSnapshot, node: Host, past: HistoryView | None) -> NodeContents:
    on_it = [
        PagedJob(status, hosts)
        for status in snapshot.jobs
        if (hosts := sorted(host for host in status.job.own_hosts if status.node(host) == node))
    ]
    about = {(SubjectKind.NODE, str(node))}
    about |= {
        (SubjectKind.POD, placed.pod)
        for part in on_it
        for host in part.hosts
        if (placed := (part.status.placements or {}).get(host)) is not None
    }
    agent = snapshot.agents.get(node)
    view = status_view(
        snapshot,
        StatusPage(
            first=False,
            jobs=on_it,
            notices=[each for each in snapshot.notices if subject_key(each) in about],
            unconfirmed=[each for each in snapshot.unconfirmed if subject_key(each) in about],
            agents=[] if agent is None else [agent],
        ),
    )
    shown = next(iter(view.agents), None)
    machine = snapshot.machines.get(node, UNKNOWN_MACHINE if agent is None else agent.machine)
    is_silent = shown is None or shown.reclaimed
    of_node = (each for each in snapshot.notices if subject_key(each) == (SubjectKind.NODE, str(node)))
    # The end of an earlier machine of this name says nothing of the present one.
    last = max(of_node, key=lambda each: each.first_seen, default=None)
    ended_at = last.ended_at if is_silent and last is not None and last.state is NoticeState.GONE else None
    return NodeContents(
        node=node,
        view=view,
        agent=shown,
        state="without an agent"
        if shown is None
        else CONNECTED
        if shown.connected
        else RECLAIMED
        if shown.reclaimed
        else SILENT,
        pool=machine.pool_name,
        notices=[*view.unconfirmed, *view.notices],
        hosts=[HostOnNode(job=job, host=host) for job in view.jobs for host in job.host_states],
        past=past,
        reclaims=[] if past is None else reclaims_of(past.entries, snapshot.notices),
        gone_seconds=None if ended_at is None else max(0.0, snapshot.now - ended_at),
    )
