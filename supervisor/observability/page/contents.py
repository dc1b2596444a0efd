"""Selects the rows of the overview and of a job's page, the most urgent first, and writes the summary. Pure."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from supervisor.domain.capacity import UNKNOWN_MACHINE, MachinePool
from supervisor.domain.ids import Host, JobName, Source, namespace
from supervisor.domain.job import AcknowledgementKind, Phase
from supervisor.domain.notice import NoticeClass, NoticeState, SubjectKind
from supervisor.observability.history import HistoryEntry
from supervisor.observability.page.plans import ReclaimPlan, ReclaimPlans
from supervisor.observability.status_view import JobPageSnapshot, PagedJob, StatusPage, StatusSnapshot, status_view
from supervisor.observability.views import AgentView, HostView, JobView, NoticeView, StatusView

_RUNBOOKS = "docs/runbooks/JobSupervisor"
"""The beginning of their paths; the rest is the name of an alert."""

MAX_ROWS = 100
"""Rows of each table. With 100 notices, jobs and workers the page has about 100 KB."""

MAX_PLANS = 10
"""Jobs of a reclaim of which the page says what they will do."""

_URGENT = (
    Phase.STOPPING,
    Phase.SHRINKING,
    Phase.RESUMING,
    Phase.SUSPENDED,
    Phase.WAITING,
    Phase.QUEUED,
    Phase.TIMED_OUT,
)
"""The phases that people look for first."""
_PLACES: Mapping[str, int] = {phase: place for place, phase in enumerate(_URGENT)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimRow:
    """An active notice; an `unconfirmed` one is not stored yet. `plans` say what its jobs do, of the first ten."""

    kind: SubjectKind
    subject: str
    source: Source
    seconds_left: float | None
    overdue_seconds: float | None
    age_seconds: float | None
    jobs: Sequence[JobName]
    message: str
    simulated: bool
    unconfirmed: bool
    notice_class: NoticeClass
    acted_on: bool
    plans: Sequence[ReclaimPlan] = ()


@dataclass(frozen=True, slots=True)
class UncoveredWorker:
    """A worker that a reclaim would not reach, and what is missing: its agent, its stream or both."""

    host: Host
    job: JobName
    missing: str


@dataclass(frozen=True, slots=True)
class PageProblem:
    """Something that needs an action, as a sentence without a full stop, and its runbook's path in the repository."""

    what: str
    runbook: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineKind:
    """A kind of machine and the number of connected nodes that have it; unknown fields are empty."""

    nodes: int
    cloud: str
    zone: str
    instance_type: str
    price_class: str

    @property
    def pool(self) -> str:
        """The name of its capacity pool; empty if it has none."""
        return MachinePool.name_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContents:
    """The rows of the page; `more_…` counts the rows that are left out.

    `namespaced`: at least one job has a namespace. `silent` are the agents that are silent for an unknown reason.
    """

    view: StatusView
    summary: str
    problems: Sequence[PageProblem]
    namespaced: bool
    reclaims: Sequence[ReclaimRow]
    more_reclaims: int
    jobs: Sequence[JobView]
    more_jobs: int
    uncovered: Sequence[UncoveredWorker]
    more_uncovered: int
    silent: Sequence[AgentView]
    more_silent: int
    machines: Sequence[MachineKind]
    more_machines: int


def overview(snapshot: StatusSnapshot) -> PageContents:
    """Returns what the overview shows. Of thousands of agents, it shows those that somebody has to look after."""
    page = StatusPage(
        jobs=[PagedJob(each, each.hosts) for each in snapshot.jobs],
        notices=list(snapshot.notices),
        unconfirmed=list(snapshot.unconfirmed),
        agents=[each for node, each in snapshot.agents.items() if not each.connected or node in snapshot.sharing],
    )
    return contents(status_view(snapshot, page), machine_kinds(snapshot))


def contents(view: StatusView, machines: Sequence[MachineKind] = ()) -> PageContents:
    """Selects the rows of a view; `machines` are those of all nodes with a connected agent."""
    active = [each for each in view.notices if each.state is NoticeState.ACTIVE]
    unconfirmed = {id(each) for each in view.unconfirmed}
    reclaims = sorted(
        (*active, *view.unconfirmed),
        key=lambda each: (inf if each.seconds_left is None else each.seconds_left, each.subject),
    )
    plans = _Planner({job.job: job for job in view.jobs})
    jobs = sorted(view.jobs, key=lambda job: urgency(job.phase, job.job))
    uncovered = []
    for job in view.jobs:
        for host in job.host_states:
            if host.uncovered:
                missing = [name for name, there in (("agent", host.agent), ("stream", host.stream)) if not there]
                uncovered.append(UncoveredWorker(host.host, job.job, " and ".join(missing)))
    silent = sorted(
        (agent for agent in view.agents if not agent.connected and not agent.reclaimed),
        key=lambda agent: (agent.silent_seconds or 0.0, agent.node),
    )
    problems = list(_problems(view, len(uncovered)))
    counts = _counts(view, sum(each.acted_on for each in reclaims), len(uncovered))
    # The counts go last: a screen reader reads the summary from the beginning, and the problems need an action.
    sentences = (*(problem.what for problem in problems), counts)
    return PageContents(
        view=view,
        summary=". ".join(part[:1].upper() + part[1:] for part in sentences) + ".",
        problems=problems,
        namespaced=any(namespace(job.job) for job in view.jobs),
        reclaims=[
            _reclaim(each, plans.about(each), unconfirmed=id(each) in unconfirmed) for each in reclaims[:MAX_ROWS]
        ],
        more_reclaims=max(0, len(reclaims) - MAX_ROWS),
        jobs=jobs[:MAX_ROWS],
        more_jobs=max(0, len(jobs) - MAX_ROWS),
        uncovered=uncovered[:MAX_ROWS],
        more_uncovered=max(0, len(uncovered) - MAX_ROWS),
        silent=silent[:MAX_ROWS],
        more_silent=max(0, len(silent) - MAX_ROWS),
        machines=machines[:MAX_ROWS],
        more_machines=max(0, len(machines) - MAX_ROWS),
    )


def urgency(phase: str, job: JobName) -> tuple[int, bool, JobName]:
    """Orders jobs by what people look for first."""
    return _PLACES.get(phase, len(_URGENT)), phase == Phase.FINISHED, job


def machine_kinds(snapshot: StatusSnapshot) -> Sequence[MachineKind]:
    """The kinds of machines of which anything is known, the most frequent first."""
    counts = Counter[tuple[str, str, str, str]]()
    for node, agent in snapshot.agents.items():
        machine = snapshot.machines.get(node, agent.machine)
        if agent.connected and machine != UNKNOWN_MACHINE:
            counts[machine.cloud, machine.zone, machine.instance_type, machine.price_class] += 1
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return [
        MachineKind(nodes=count, cloud=cloud, zone=zone, instance_type=instance_type, price_class=price)
        for (cloud, zone, instance_type, price), count in ordered
    ]


def _problems(view: StatusView, uncovered: int) -> Iterator[PageProblem]:
    """Finds problems that need an action.

    A covered reclaim is no problem, nor is a silent agent of a node without workers.
    """
    if not view.leader.acts:
        yield PageProblem("it is not certain that a supervisor leads", _RUNBOOKS + "NoLeader.md")
    if view.unconfirmed:
        count = _count(len(view.unconfirmed), "notice", "notices")
        yield PageProblem(f"{count} cannot be stored", _RUNBOOKS + "StoreFailing.md")
    # A host of the job is gone before its checkpoint was saved.
    late = len(
        {job.job for job in view.jobs if job.phase is Phase.STOPPING and job.seconds_left == 0}
        | {group.job for group in view.groups if group.late and group.suspended and not group.error}
    )
    # The last run of a suspended job could not save.
    failed = sum(
        job.phase in (Phase.SUSPENDED, Phase.QUEUED)
        and job.acknowledgement is not None
        and job.acknowledgement.run == job.run
        and job.acknowledgement.kind is AcknowledgementKind.FAILED
        for job in view.jobs
    )
    if failed:
        yield PageProblem(f"{_count(failed, 'job', 'jobs')} could not be saved", _RUNBOOKS + "LateStops.md")
    if late:
        yield PageProblem(f"{_count(late, 'job was', 'jobs were')} not saved in time", _RUNBOOKS + "LateStops.md")
    if uncovered:
        count = _count(uncovered, "worker is", "workers are")
        yield PageProblem(f"{count} not covered", _RUNBOOKS + "WorkersUncovered.md")


def _counts(view: StatusView, reclaims: int, uncovered: int) -> str:
    """Counts reclaims and jobs. No number changes with time alone, because screen readers read each change aloud."""
    parts = [_count(reclaims, "reclaim under way", "reclaims under way") if reclaims else "nothing is being reclaimed"]
    for phase in (*_URGENT, Phase.RUNNING):
        jobs = sum(job.phase is phase for job in view.jobs)
        if jobs:
            parts.append(f"{_count(jobs, 'job', 'jobs')} {phase}")
    return ", ".join(parts if uncovered else [*parts, "every worker is covered"])


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


@dataclass(slots=True)
class _Planner:
    """Says what jobs do about notices, and looks at the hosts of each job once."""

    jobs: Mapping[JobName, JobView]
    _plans: dict[JobName, ReclaimPlans] = field(default_factory=dict)

    def about(self, notice: NoticeView) -> Sequence[ReclaimPlan]:
        return [self._of(name).about(notice) for name in notice.jobs[:MAX_PLANS] if name in self.jobs]

    def _of(self, name: JobName) -> ReclaimPlans:
        if name not in self._plans:
            self._plans[name] = ReclaimPlans(self.jobs[name])
        return self._plans[name]


def _reclaim(notice: NoticeView, plans: Sequence[ReclaimPlan], *, unconfirmed: bool) -> ReclaimRow:
    return ReclaimRow(
        kind=notice.kind,
        subject=notice.subject,
        source=notice.source,
        seconds_left=notice.seconds_left,
        overdue_seconds=notice.overdue_seconds,
        age_seconds=notice.age_seconds,
        jobs=notice.jobs,
        message=notice.message,
        simulated=notice.simulated,
        unconfirmed=unconfirmed,
        notice_class=notice.notice_class,
        acted_on=notice.acted_on,
        plans=plans,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContents:
    """The rows of a job's page. `entries` end with entries of the stored job from the time before the history."""

    view: StatusView
    job: JobView
    command: str
    hosts: Sequence[HostView]
    more_hosts: int
    entries: Sequence[HistoryEntry]
    since: float


def job_contents(snapshot: JobPageSnapshot) -> JobContents:
    status = snapshot.status
    # It shows no agents, of which there may be thousands.
    page = StatusPage(
        jobs=[PagedJob(each, each.hosts) for each in status.jobs],
        notices=list(status.notices),
        unconfirmed=list(status.unconfirmed),
    )
    view = status_view(status, page)
    (job,) = view.jobs
    hosts = sorted(
        job.host_states,
        key=lambda host: (
            inf if host.seconds_left is None else host.seconds_left,
            not host.uncovered,
            not host.worker,
            host.host,
        ),
    )
    return JobContents(
        view=view,
        job=job,
        command=f"job-supervisor explain {shlex.quote(job.job)}",
        hosts=hosts[:MAX_ROWS],
        more_hosts=max(0, len(hosts) - MAX_ROWS),
        entries=[*snapshot.history, *(entry for entry in snapshot.stored if entry.at < snapshot.since)],
        since=snapshot.since,
    )


def host_state(host: HostView) -> str:
    """Describes how a job uses a host, and that it is gone: a launcher lists it for a while."""
    if host.gone_seconds is not None:
        return "gone, excluded" if host.excluded else "gone"
    parts = [
        *(["launcher"] if host.launcher else []),
        *(["excluded"] if host.excluded else ["worker"] if host.worker else []),
        *(["not covered"] if host.uncovered else []),
    ]
    return ", ".join(parts) or "not in use"
