"""Defines the snapshot of a leader, cuts it into pages, and computes the status that people and tools see. Pure.

A page is small, so that one answer does not delay other requests.
"""

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

import msgspec

from supervisor.decide.explanation import NOTHING, Missing, prospects
from supervisor.decide.policy import Policy
from supervisor.decide.ranks import NO_RANKS, RankCounts, Ranks, names
from supervisor.decide.reasons import at_present, gang_sentence
from supervisor.decide.urgency import deadline_of, is_acted_on, most_urgent
from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine, Placement
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Acknowledgement, Capability, SupervisedJob
from supervisor.domain.notice import SIMULATED, NoticeState, ReclaimNotice, SubjectKind
from supervisor.ingest.agent_registry import AgentState, reclaimed
from supervisor.observability import views
from supervisor.observability.groups import DecidedGroup
from supervisor.observability.history import HistoryEntry
from supervisor.refusals import Code, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFactsSnapshot:
    """A job with the facts that only the streams and the cluster know.

    `noticed` maps each noticed host to its most urgent notice. `placements` is None if the hosts are nodes. `streams`
    are the hosts with a connected process. `since` is when the phase began. `missing` returns what a waiting job lacks,
    `ranks` what its processes say about agreed steps, and `rank_counts` how many of them know their rank. `faults` has
    a sentence for each part of the supervisor that fails on this job.
    """

    job: SupervisedJob
    noticed: Mapping[Host, ReclaimNotice]
    placements: Mapping[Host, Placement] | None
    streams: frozenset[Host]
    since: float | None
    missing: Callable[[], Missing] = lambda: NOTHING
    ranks: Callable[[], Ranks] = lambda: NO_RANKS
    rank_counts: Callable[[], RankCounts] = RankCounts
    faults: tuple[str, ...] = ()

    @property
    def hosts(self) -> list[Host]:
        """All hosts of the job, ordered by name."""
        return sorted(self.job.observed.hosts | self.job.own_hosts)

    def node(self, host: Host) -> Host:
        """The node of a host."""
        placement = None if self.placements is None else self.placements.get(host)
        return host if placement is None else placement.node


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSnapshot:
    """The state at `now` (Unix seconds). `gpus` are those of each worker of a job, where they are known.

    `silent`: since when an agent has had no stream. `heard`: when it last gave a sign of life, which is earlier.
    """

    now: float
    policy: Policy
    leader: views.LeaderView
    jobs: tuple[JobFactsSnapshot, ...]
    notices: tuple[ReclaimNotice, ...]
    unconfirmed: tuple[ReclaimNotice, ...]
    groups: tuple[DecidedGroup, ...]
    agents: Mapping[Host, AgentState]
    silent: Mapping[Host, float]
    refused: Mapping[tuple[Wire, Code], int]
    heard: Mapping[Host, float] = field(default_factory=dict)
    machines: Mapping[Host, Machine] = field(default_factory=dict)
    sharing: Mapping[Host, Sequence[Host]] = field(default_factory=dict)
    gpus: Mapping[JobName, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPageSnapshot:
    """A snapshot of one job, and its latest history, which is complete since `since` (Unix seconds)."""

    status: StatusSnapshot
    history: Sequence[HistoryEntry]
    stored: Sequence[HistoryEntry]
    since: float


MAX_ENTRIES = 1000
"""Entries on one page: hosts of jobs, notices and agents. They take about 5 ms of the loop's time."""


class BadPositionError(ValueError):
    """The text is not the position of a page's end."""


class StatusPart(IntEnum):
    """The lists that are paged, in this order."""

    JOBS = 0
    NOTICES = 1
    UNCONFIRMED = 2
    AGENTS = 3


class PagePosition(msgspec.Struct, frozen=True, array_like=True):
    """The last entry of a page; `host` is the last host of a job that continues on the next page.

    It consists of names, so that it stays valid when entries are added or removed.
    """

    part: StatusPart = StatusPart.JOBS
    name: str = ""
    host: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """Parses the result of `str`.

        Raises:
            BadPositionError: The text is not a position.
        """
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)
        except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
            raise BadPositionError("not the position of a page") from error

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode("ascii")


START = PagePosition()


@dataclass(frozen=True, slots=True)
class PagedJob:
    """A job with the part of its hosts that is on the page, ordered by name."""

    status: JobFactsSnapshot
    hosts: Sequence[Host]


@dataclass(slots=True)
class StatusPage:
    """The entries of one page; `last` is its end, None if nothing follows."""

    first: bool = True
    jobs: list[PagedJob] = field(default_factory=list)
    notices: list[ReclaimNotice] = field(default_factory=list)
    unconfirmed: list[ReclaimNotice] = field(default_factory=list)
    agents: list[AgentState] = field(default_factory=list)
    last: PagePosition | None = None


def page(snapshot: StatusSnapshot, after: PagePosition, limit: int) -> StatusPage:
    """The page of at most `limit` entries that follows a position."""
    cut, room = StatusPage(first=after == START), limit
    for each, hosts in _jobs(snapshot, after):
        if room <= 0:
            return cut
        part = hosts[:room]
        cut.jobs.append(PagedJob(each, part))
        cut.last = PagePosition(StatusPart.JOBS, each.job.name, part[-1] if part else "")
        room -= max(1, len(part))
        if len(part) < len(hosts):
            return cut
    lists: list[tuple[StatusPart, list[Any], Mapping[Any, Any]]] = [
        (StatusPart.NOTICES, cut.notices, {notice.id: notice for notice in snapshot.notices}),
        (StatusPart.UNCONFIRMED, cut.unconfirmed, {notice.id: notice for notice in snapshot.unconfirmed}),
        (StatusPart.AGENTS, cut.agents, snapshot.agents),
    ]
    for kind, on_page, items in lists:
        names = sorted(name for name in items if kind > after.part or (kind == after.part and name > after.name))
        taken = names[: max(0, room)]
        on_page.extend(items[name] for name in taken)
        room -= len(taken)
        if taken:
            cut.last = PagePosition(kind, taken[-1])
        if len(taken) < len(names):
            return cut
    cut.last = None
    return cut


def _jobs(snapshot: StatusSnapshot, after: PagePosition) -> Iterator[tuple[JobFactsSnapshot, list[Host]]]:
    """The jobs after a position, each with its remaining hosts."""
    if after.part is not StatusPart.JOBS:
        return
    for each in sorted((each for each in snapshot.jobs if each.job.name >= after.name), key=lambda each: each.job.name):
        hosts = each.hosts
        begun = each.job.name == after.name
        rest = hosts[bisect_right(hosts, after.host) :] if begun else hosts
        if rest or not begun:
            yield each, rest


def subject_key(notice: ReclaimNotice) -> tuple[SubjectKind, str]:
    """The key of a notice's subject: a node by its name, a pod by its uid."""
    subject = notice.subject
    return subject.kind, subject.name if subject.kind is SubjectKind.NODE else subject.uid


Subjects = Mapping[tuple[SubjectKind, str], Collection[JobName]]
"""The jobs on each subject: a node by name, a pod by uid."""


def status_view(snapshot: StatusSnapshot, page: StatusPage | None = None) -> views.StatusView:
    """Computes the status of a snapshot: one page, or all of it."""
    shown = page or StatusPage(
        jobs=[PagedJob(each, each.hosts) for each in snapshot.jobs],
        notices=list(snapshot.notices),
        unconfirmed=list(snapshot.unconfirmed),
        agents=list(snapshot.agents.values()),
    )
    gone = reclaimed(snapshot.notices, snapshot.agents, snapshot.silent.get)
    subjects = _subjects(snapshot.jobs, {subject_key(notice) for notice in (*shown.notices, *shown.unconfirmed)})
    return views.StatusView(
        now=snapshot.now,
        leader=snapshot.leader,
        jobs=[_job(part, snapshot) for part in shown.jobs],
        notices=[_notice(notice, subjects, snapshot) for notice in shown.notices],
        unconfirmed=[_notice(notice, subjects, snapshot) for notice in shown.unconfirmed],
        groups=[_group(group, snapshot) for group in snapshot.groups] if shown.first else [],
        coverage=_coverage(snapshot, gone),
        agents=[_agent(agent, snapshot, gone) for agent in shown.agents],
        refused=[views.RefusedView(wire, code, count) for (wire, code), count in sorted(snapshot.refused.items())],
        next=None if shown.last is None else str(shown.last),
    )


def _job(part: PagedJob, snapshot: StatusSnapshot) -> views.JobView:
    status, job = part.status, part.status.job
    decision, observed, spec = job.decision, job.observed, job.spec
    own, workers = job.own_hosts, job.workers
    kept = decision.hosts - decision.exclusions
    # A large job spans several pages. Lists of hosts have those of this page; counts and times are of the whole job.
    missing, on_page = status.missing(), frozenset(part.hosts)
    ranks = NO_RANKS if job.over else status.ranks()
    agreement = _agreement(status, ranks, snapshot.now)
    noticed = [status.noticed[host] for host in status.noticed.keys() & own]
    first = most_urgent((each for each in noticed if each.state is NoticeState.ACTIVE), snapshot.policy)
    request = observed.request
    return views.JobView(
        job=job.name,
        phase=decision.phase,
        age_seconds=max(0.0, snapshot.now - observed.registered_at),
        since_seconds=_ago(status.since, snapshot.now),
        reason=at_present(job),
        generation=decision.generation,
        run=observed.run,
        running=observed.running,
        result=observed.result,
        restarts=observed.restarts,
        framework=spec.framework,
        host_count=len(observed.hosts | own),
        hosts=[host for host in part.hosts if host in observed.hosts],
        workers=[host for host in part.hosts if host in kept],
        exclusions=[host for host in part.hosts if host in decision.exclusions],
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        requested_workers=spec.requested_workers,
        on_loss=spec.on_loss,
        worker_multiple=spec.worker_multiple,
        fixed_hosts=spec.can(Capability.FIXED_HOSTS),
        gang=gang_sentence(spec),
        ignored=list(spec.ignored),
        faults=list(status.faults),
        seconds_left=None if first is None else _until(deadline_of(first, snapshot.policy), snapshot.now),
        overdue_seconds=None if first is None else _overdue(first, snapshot.now),
        simulated=any(notice.simulated for notice in noticed if notice.state is NoticeState.ACTIVE),
        request=None
        if request is None
        else views.RequestView(
            kind=request.kind, by=request.by, reason=request.reason, age_seconds=max(0.0, snapshot.now - request.at)
        ),
        acknowledgement=_acknowledgement(observed.acknowledgement, snapshot.now),
        agreement=agreement,
        round=_round(status, snapshot.now),
        prospects=[views.ProspectView(prospect.what, _until(prospect.at, snapshot.now)) for prospect in prospects(job)],
        waits_for=missing.summary,
        shortfall=missing.shortfall,
        missing_hosts=[
            views.MissingHostView(one.host, one.lack, one.why) for one in missing.hosts if one.host in on_page
        ],
        step_seconds=ranks.slowest_step,
        checkpoint_seconds=ranks.slowest_checkpoint,
        unread_seconds=None if agreement is None else agreement.unread_seconds,
        ranks=RankCounts() if job.over else status.rank_counts(),
        host_states=[_host(host, status, workers, snapshot) for host in part.hosts if host in own],
    )


def _host(host: Host, status: JobFactsSnapshot, workers: Container[Host], snapshot: StatusSnapshot) -> views.HostView:
    job, node, notice = status.job, status.node(host), status.noticed.get(host)
    agent, placed = snapshot.agents.get(node), (status.placements or {}).get(host)
    deadline = overdue = ended_at = None
    if notice is not None and notice.state is NoticeState.ACTIVE:
        # It is assumed if the source names no time.
        deadline, overdue = deadline_of(notice, snapshot.policy), _overdue(notice, snapshot.now)
    elif notice is not None and notice.state is NoticeState.GONE:
        ended_at = notice.ended_at
    return views.HostView(
        host=host,
        node=node,
        pod=None if placed is None else placed.name,
        worker=host in workers,
        launcher=host == job.spec.launcher_host,
        excluded=host in job.decision.exclusions,
        notice=None if notice is None else notice.id,
        seconds_left=_until(deadline, snapshot.now),
        overdue_seconds=overdue,
        gone_seconds=_ago(ended_at, snapshot.now),
        agent=agent is not None and agent.connected,
        stream=host in status.streams,
    )


def _agreement(status: JobFactsSnapshot, ranks: Ranks, now: float) -> views.AgreementView | None:
    agreement = status.job.decision.agreement
    if agreement is None or status.job.over:
        return None
    return views.AgreementView(
        purpose=agreement.purpose,
        epoch=agreement.epoch,
        step=agreement.step,
        committed=agreement.committed,
        age_seconds=max(0.0, now - agreement.since),
        waits_for=names(ranks.silent(agreement)),
        unread_seconds=ranks.unread_seconds,
    )


def _round(status: JobFactsSnapshot, now: float) -> views.RoundView | None:
    held, job = status.job.decision.round, status.job
    if held is None or job.over or held.run != job.observed.run:
        return None
    return views.RoundView(
        number=held.number, size=len(held.hosts), in_process=held.in_process, age_seconds=max(0.0, now - held.since)
    )


def _acknowledgement(given: Acknowledgement | None, now: float) -> views.AcknowledgementView | None:
    if given is None:
        return None
    return views.AcknowledgementView(
        run=given.run,
        generation=given.generation,
        kind=given.kind,
        step=given.step,
        age_seconds=max(0.0, now - given.at),
        rank=given.rank,
        error=given.error,
        resumes_from=given.resumes_from,
    )


def _subjects(jobs: Iterable[JobFactsSnapshot], asked: Collection[tuple[SubjectKind, str]]) -> Subjects:
    """Finds the jobs that each wanted subject concerns. There may be far more hosts than wanted subjects."""
    nodes = {name for kind, name in asked if kind is SubjectKind.NODE}
    found: dict[tuple[SubjectKind, str], set[JobName]] = {}
    for status in jobs:
        for subject in _subjects_of(status, nodes):
            if subject in asked:
                found.setdefault(subject, set()).add(status.job.name)
    return found


def _subjects_of(status: JobFactsSnapshot, nodes: Collection[str]) -> Iterator[tuple[SubjectKind, str]]:
    if status.placements is None:
        yield from ((SubjectKind.NODE, host) for host in status.job.own_hosts.intersection(nodes))
        return
    for host in status.job.own_hosts:
        yield SubjectKind.NODE, status.node(host)
        if host in status.placements:
            yield SubjectKind.POD, status.placements[host].pod


def _notice(notice: ReclaimNotice, subjects: Subjects, snapshot: StatusSnapshot) -> views.NoticeView:
    subject = notice.subject
    jobs = subjects.get(subject_key(notice), ()) if notice.state is NoticeState.ACTIVE else ()
    return views.NoticeView(
        id=notice.id,
        episode=notice.episode,
        source=notice.source,
        subject=subject.name,
        kind=subject.kind,
        state=notice.state,
        seconds_left=_until(notice.deadline, snapshot.now),
        overdue_seconds=_overdue(notice, snapshot.now) if notice.state is NoticeState.ACTIVE else None,
        age_seconds=max(0.0, snapshot.now - notice.first_seen),
        ended_seconds=_ago(notice.ended_at, snapshot.now),
        simulated=notice.simulated,
        jobs=sorted(jobs),
        announced=notice.announced,
        message=notice.message,
        notice_class=notice.notice_class,
        acted_on=notice.state is NoticeState.ACTIVE and is_acted_on(notice, snapshot.now, snapshot.policy),
        cancellable=notice.cancellable,
    )


def _group(group: DecidedGroup, snapshot: StatusSnapshot) -> views.GroupView:
    answer, now = group.acknowledgement, snapshot.now
    gpus, suspended = snapshot.gpus.get(group.job), None
    if group.suspended_at is not None:
        suspended = max(0.0, (now if group.resumed_at is None else group.resumed_at) - group.suspended_at)
    answered_at = group.suspended_at if answer is None else answer.at
    return views.GroupView(
        job=group.job,
        outcome=group.outcome,
        age_seconds=max(0.0, now - group.at),
        reason=group.reason,
        sources=list(group.sources),
        subjects=list(group.subjects),
        simulated=SIMULATED in group.sources,
        decided_after_seconds=None if group.noticed_at is None else max(0.0, group.at - group.noticed_at),
        acknowledged=None if answer is None else answer.kind,
        step=None if answer is None else answer.step,
        rank=0 if answer is None else answer.rank,
        error="" if answer is None else answer.error,
        steps_lost=group.steps_lost,
        margin_seconds=None if answer is None or group.deadline is None else group.deadline - answer.at,
        late=answered_at is not None and group.deadline is not None and answered_at >= group.deadline,
        suspended=group.suspended_at is not None and not group.closed,
        suspended_seconds=suspended,
        released_gpu_seconds=None if suspended is None or gpus is None else suspended * gpus * group.workers,
        cause=group.cause,
        id=group.id,
    )


def _coverage(snapshot: StatusSnapshot, gone: Collection[Host]) -> views.CoverageView:
    connected = {agent.node for agent in snapshot.agents.values() if agent.connected}
    count = without_agent = without_stream = 0
    for status in snapshot.jobs:
        workers = status.job.workers
        count += len(workers)
        without_stream += len(workers - status.streams)
        if status.placements is None:
            without_agent += len(workers.difference(connected))
        else:
            without_agent += sum(status.node(host) not in connected for host in workers)
    return views.CoverageView(
        workers=count,
        without_agent=without_agent,
        without_stream=without_stream,
        agents_connected=len(connected),
        agents_unknown=len(snapshot.agents) - len(connected) - len(gone),
        agents_reclaimed=len(gone),
    )


def _agent(agent: AgentState, snapshot: StatusSnapshot, gone: Collection[Host]) -> views.AgentView:
    return views.AgentView(
        node=agent.node,
        connected=agent.connected,
        reclaimed=agent.node in gone,
        silent_seconds=_ago(snapshot.heard.get(agent.node, snapshot.silent.get(agent.node)), snapshot.now),
        same_uid=list(snapshot.sharing.get(agent.node, ())),
        sources=[views.SourceView(source, state) for source, state in agent.sources.items()],
        pod_sources=[views.SourceView(source, state) for source, state in agent.pod_sources.items()],
        machine=_machine(snapshot.machines.get(agent.node, agent.machine), snapshot.now),
    )


def _machine(machine: Machine, now: float) -> views.MachineView | None:
    if machine == UNKNOWN_MACHINE:
        return None
    return views.MachineView(
        cloud=machine.cloud,
        region=machine.region,
        zone=machine.zone,
        instance_type=machine.instance_type,
        price_class=machine.price_class,
        spot_strategy=machine.spot_strategy,
        protected_seconds=_until(machine.protected_until, now),
    )


def _ago(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)


def _until(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, at - now)


def _overdue(notice: ReclaimNotice, now: float) -> float | None:
    """For how long a notice is past its time. A node that a person drains is drained then, and not late."""
    at = None if notice.drains else notice.deadline
    return None if at is None or at >= now else now - at
