"""Everything there is to see at one moment, worked out from plain values: no I/O, no clock."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.decide.notices import deadline_of
from supervisor.decide.policy import Policy
from supervisor.decide.prospects import prospects
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Acknowledgement, SupervisedJob
from supervisor.domain.notice import SIMULATED, NoticeState, ReclaimNotice, SubjectKind
from supervisor.domain.placement import Placement
from supervisor.presence import AgentView, reclaimed
from supervisor.record.groups import Group
from supervisor.record.values import (
    AcknowledgementView,
    AgentOnNode,
    CoverageView,
    GroupView,
    HostView,
    JobView,
    LeaderView,
    NoticeView,
    ProspectView,
    RefusedView,
    SourceView,
    View,
)
from supervisor.refusals import Code, Wire

Subjects = Mapping[tuple[SubjectKind, str], Collection[JobName]]
"""The jobs by what their hosts are: nodes by name, pods by uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """One job, and what only the streams and the cluster know of it.

    `noticed` are its noticed hosts, each with its most urgent notice; `places` is None where its hosts are nodes;
    `streams` are the hosts from which processes have one; `since` is when its phase began.
    """

    job: SupervisedJob
    noticed: Mapping[Host, ReclaimNotice]
    places: Mapping[Host, Placement] | None
    streams: frozenset[Host]
    since: float | None

    def node(self, host: Host) -> Host:
        """Where a host is."""
        place = None if self.places is None else self.places.get(host)
        return host if place is None else place.node


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was so at `now` (Unix seconds)."""

    now: float
    policy: Policy
    leader: LeaderView
    jobs: tuple[JobSeen, ...]
    notices: tuple[ReclaimNotice, ...]
    unconfirmed: tuple[ReclaimNotice, ...]
    groups: tuple[Group, ...]
    agents: Mapping[Host, AgentView]
    silent: Mapping[Host, float]
    refused: Mapping[tuple[Wire, Code], int]
    sharing: Mapping[Host, Sequence[Host]] = field(default_factory=dict)


def view(seen: Seen) -> View:
    """What is shown of it."""
    jobs = [_job(each, seen) for each in seen.jobs]
    subjects = _subjects(seen.jobs)
    gone = reclaimed(seen.notices, seen.agents, seen.silent.get)
    return View(
        now=seen.now,
        leader=seen.leader,
        jobs=jobs,
        notices=[_notice(notice, subjects, seen) for notice in seen.notices],
        unconfirmed=[_notice(notice, subjects, seen) for notice in seen.unconfirmed],
        groups=[_group(group, seen.now) for group in seen.groups],
        coverage=_coverage(jobs, seen.agents.values(), gone),
        agents=[_agent(agent, seen, gone) for agent in seen.agents.values()],
        refused=[RefusedView(wire, code, count) for (wire, code), count in sorted(seen.refused.items())],
    )


def _job(each: JobSeen, seen: Seen) -> JobView:
    job = each.job
    decision, observed, spec = job.decision, job.observed, job.spec
    hosts = [_host(host, each, seen) for host in sorted(job.own_hosts)]
    lefts = [host.seconds_left for host in hosts if host.seconds_left is not None]
    return JobView(
        job=job.name,
        phase=decision.phase,
        since_seconds=_ago(each.since, seen.now),
        reason=decision.reason,
        generation=decision.generation,
        run=observed.run,
        running=observed.running,
        result=observed.result,
        restarts=observed.restarts,
        framework=spec.framework,
        hosts=sorted(observed.hosts),
        workers=sorted(decision.hosts - decision.exclusions),
        exclusions=sorted(decision.exclusions),
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        requested_workers=spec.requested_workers,
        seconds_left=min(lefts, default=None),
        simulated=any(notice.simulated for host, notice in _own(each) if notice.state is NoticeState.ACTIVE),
        acknowledgement=_acknowledgement(observed.acknowledgement, seen.now),
        prospects=[ProspectView(each.what, _until(each.at, seen.now)) for each in prospects(job)],
        host_states=hosts,
    )


def _own(each: JobSeen) -> Iterable[tuple[Host, ReclaimNotice]]:
    return ((host, each.noticed[host]) for host in each.job.own_hosts if host in each.noticed)


def _host(host: Host, each: JobSeen, seen: Seen) -> HostView:
    job, node, notice = each.job, each.node(host), each.noticed.get(host)
    agent = seen.agents.get(node)
    return HostView(
        host=host,
        node=node,
        worker=host in job.workers,
        launcher=host == job.spec.launcher_host,
        excluded=host in job.decision.exclusions,
        notice=None if notice is None else notice.id,
        seconds_left=None if notice is None else _left(notice, seen),
        agent=agent is not None and agent.connected,
        stream=host in each.streams,
    )


def _left(notice: ReclaimNotice, seen: Seen) -> float | None:
    """Until the subject is gone; where the source names no time, until it is assumed to be."""
    if notice.state is not NoticeState.ACTIVE:
        return None
    return max(0.0, deadline_of(notice, seen.policy) - seen.now)


def _acknowledgement(given: Acknowledgement | None, now: float) -> AcknowledgementView | None:
    if given is None:
        return None
    return AcknowledgementView(
        run=given.run,
        generation=given.generation,
        kind=given.kind,
        step=given.step,
        age_seconds=max(0.0, now - given.at),
    )


def _subjects(jobs: Iterable[JobSeen]) -> Subjects:
    found: dict[tuple[SubjectKind, str], set[JobName]] = {}
    for each in jobs:
        for host in each.job.own_hosts:
            found.setdefault((SubjectKind.NODE, each.node(host)), set()).add(each.job.name)
            if each.places is not None and host in each.places:
                found.setdefault((SubjectKind.POD, each.places[host].pod), set()).add(each.job.name)
    return found


def _notice(notice: ReclaimNotice, subjects: Subjects, seen: Seen) -> NoticeView:
    subject = notice.subject
    known_by = subject.name if subject.kind is SubjectKind.NODE else subject.uid
    jobs = subjects.get((subject.kind, known_by), ()) if notice.state is NoticeState.ACTIVE else ()
    return NoticeView(
        id=notice.id,
        episode=notice.episode,
        source=notice.source,
        subject=subject.name,
        kind=subject.kind,
        state=notice.state,
        seconds_left=None if notice.deadline is None else max(0.0, notice.deadline - seen.now),
        age_seconds=max(0.0, seen.now - notice.first_seen),
        ended_seconds=_ago(notice.ended_at, seen.now),
        simulated=notice.simulated,
        jobs=sorted(jobs),
        announced=notice.announced,
        message=notice.message,
    )


def _group(group: Group, now: float) -> GroupView:
    answer = group.acknowledgement
    until = now if group.resumed_at is None else group.resumed_at
    return GroupView(
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
        steps_lost=group.steps_lost,
        margin_seconds=None if answer is None or group.deadline is None else group.deadline - answer.at,
        late=_is_late(group),
        suspended=group.suspended_at is not None and not group.closed,
        suspended_seconds=None if group.suspended_at is None else max(0.0, until - group.suspended_at),
    )


def _is_late(group: Group) -> bool:
    answered = group.suspended_at if group.acknowledgement is None else group.acknowledgement.at
    return answered is not None and group.deadline is not None and answered >= group.deadline


def _coverage(jobs: Iterable[JobView], agents: Collection[AgentView], gone: Collection[Host]) -> CoverageView:
    workers = [host for job in jobs for host in job.host_states if host.worker]
    connected = sum(agent.connected for agent in agents)
    return CoverageView(
        workers=len(workers),
        without_agent=sum(not host.agent for host in workers),
        without_stream=sum(not host.stream for host in workers),
        agents_connected=connected,
        agents_unknown=len(agents) - connected - len(gone),
        agents_reclaimed=len(gone),
    )


def _agent(agent: AgentView, seen: Seen, gone: Collection[Host]) -> AgentOnNode:
    return AgentOnNode(
        node=agent.node,
        connected=agent.connected,
        reclaimed=agent.node in gone,
        silent_seconds=_ago(seen.silent.get(agent.node), seen.now),
        same_uid=list(seen.sharing.get(agent.node, ())),
        sources=[SourceView(source, state) for source, state in agent.sources.items()],
        pod_sources=[SourceView(source, state) for source, state in agent.pod_sources.items()],
    )


def _ago(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)


def _until(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, at - now)
