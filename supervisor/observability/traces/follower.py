"""Follows each decided group of reclaims from its notices to its end, and reports what happened as spans.

A span is reported as soon as it has ended, and the root of a trace last. The ids of a trace follow from what is stored
of the job, so that the next leader goes on with the same trace.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from supervisor.decide.policy import Policy
from supervisor.decide.reasons import is_drill, outcome
from supervisor.decide.urgency import by_urgency
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host, JobName, NoticeId, Source, bare_name, kind_of, namespace
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice, SubjectKind
from supervisor.domain.order import ProcessDirective, ProcessDirectiveKind
from supervisor.observability.groups import (
    OVER,
    DecidedGroup,
    GroupCause,
    GroupOutcome,
    begun,
    outcome_of,
    stored_cause,
)
from supervisor.observability.journal import (
    SUSPENDED,
    Change,
    JobChanged,
    JobForgotten,
    NoticeChanged,
    NoticedHosts,
    is_unsaved,
)
from supervisor.observability.traces.spans import Attribute, SpanEvent, TraceIds, TraceSpan, trace_ids
from supervisor.store.conditions import sentence

MAX_NOTICES = 20_000
"""Notices that are followed; 10,000 nodes may have two each. About 5 MB."""

MAX_SPANS = 200
"""Spans of one trace. A job that waits for weeks tries to resume several times an hour."""

MAX_NAMES = 32
"""Notices with spans of their own, and names in an attribute, of one group."""

_P = "job_supervisor."
"""The prefix of our attributes."""


@dataclass(slots=True)
class _KnownNotice:
    """A notice that holds: when this supervisor saw it stored, and the jobs that were decided on because of it."""

    notice: ReclaimNotice
    stored_at: float | None
    jobs: set[JobName] = field(default_factory=set)


@dataclass(slots=True)
class _NoticedSubject:
    """The notices of a node or a pod that hold, and the traces that are about a host there."""

    notices: set[NoticeId] = field(default_factory=set)
    traces: list["_OpenTrace"] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class _OpenTrace:
    """A trace whose root has not ended, or one of whose notices still holds.

    Attributes:
        ids: The ids of the trace.
        group: The decision. Its instants are Unix seconds, as are all others here.
        begins: When the root begins.
        generation: That of the directives which follow from the decision.
        phase: The phase of the job, which began at `since` for `reason`.
        marks: The attributes of each span.
        notices: The notices that it is about, with their sources.
        holding: Those of them that hold.
        subjects: The names of the nodes and the uids of the pods that it is about.
        ordered: The generation and the instant of an order that the launcher has not confirmed; None if there is none.
        told: The directives that have been sent.
        answer: The last acknowledgement.
        earlier: The trace of an earlier decision about the job, which this one has ended.
        events: What happened meanwhile.
        error: Why the trace counts as failed.
        taken_over: Whether an earlier leader has begun the trace.
        count: The spans so far.
    """

    ids: TraceIds
    group: DecidedGroup
    begins: float
    generation: int
    phase: Phase
    since: float
    reason: str
    marks: Mapping[str, Attribute]
    notices: dict[NoticeId, Source]
    holding: set[NoticeId] = field(default_factory=set)
    subjects: set[str] = field(default_factory=set)
    ordered: tuple[int, float] | None = None
    told: set[ProcessDirectiveKind] = field(default_factory=set)
    answer: Acknowledgement | None = None
    earlier: TraceIds | None = None
    events: list[SpanEvent] = field(default_factory=list)
    error: str = ""
    taken_over: bool = False
    count: int = 0


def trace_of(job: SupervisedJob, outcome: GroupOutcome) -> TraceIds:
    """Returns the trace of the present decision about a job.

    A stop belongs to the run that was seen last, a smaller size to the generation of the exclusions. A job that is
    stopped again before its next run was seen stays in the same trace.
    """
    number = job.decision.excluded_at if outcome is GroupOutcome.SHRUNK else job.observed.run
    # Whole seconds, as a cluster stores rounded instants.
    return trace_ids(job.name, job.uid, int(job.observed.registered_at), outcome, number)


class ReclaimTraces:
    """Makes the traces, as a listener of the journal that also observes directives.

    Args:
        put: Takes each span that has ended; must not block.
        noticed: Returns the hosts of a job with a notice. Called at a decision.
        binds: Returns whether a notice concerns the present node or pod of its name.
        placements: Returns the node and the pod of each host of a job; None if its hosts are nodes.
        policy: Gives the deadline of a notice whose source names no time.
        now: Unix seconds.
    """

    name = "traces"

    def __init__(  # noqa: PLR0913, PLR0917 - what it reads of a decision
        self,
        put: Callable[[TraceSpan], None],
        noticed: NoticedHosts,
        binds: Callable[[ReclaimNotice], bool],
        placements: Callable[[JobName], Mapping[Host, Placement] | None],
        policy: Policy,
        now: Callable[[], float],
    ) -> None:
        self._put = put
        self._noticed = noticed
        self._binds = binds
        self._placements = placements
        self._policy = policy
        self._now = now
        self._open: dict[JobName, _OpenTrace] = {}
        self._notices: dict[NoticeId, _KnownNotice] = {}
        self._subjects: dict[str, _NoticedSubject] = {}
        """By the name of a node and the uid of a pod, as long as a notice about it holds."""
        self._sent: dict[JobName, dict[ProcessDirectiveKind, tuple[int, float]]] = {}
        """The last directives of jobs, as they may precede the journal's report of the decision."""

    @property
    def size(self) -> int:
        """The notices, subjects and open traces that are held in memory."""
        return len(self._notices) + len(self._subjects) + len(self._open)

    def begin(self, notices: Iterable[ReclaimNotice]) -> None:
        """Takes over the notices that are stored. Call it once, before the first change and `take_over`."""
        active = (notice for notice in notices if notice.state is NoticeState.ACTIVE)
        for notice in islice(active, MAX_NOTICES):
            self._know(notice, None)

    def take_over(self, job: SupervisedJob) -> None:
        """Goes on with the trace of an earlier leader that has not ended, with as much of it as is stored."""
        decision, observed = job.decision, job.observed
        known = {
            Phase.STOPPING: None if decision.stop is None else decision.stop.since,
            Phase.SUSPENDED: decision.waiting_since,
            Phase.RESUMING: decision.run_since,
            Phase.SHRINKING: None,
        }
        is_shrinking = decision.phase is Phase.SHRINKING
        if job.over or decision.phase not in known or not (observed.run or is_shrinking):
            return
        now = self._now()
        since = known[decision.phase]
        since = now if since is None else min(now, since)
        decided = GroupOutcome.SHRUNK if is_shrinking else GroupOutcome.STOPPED
        noticed = self._noticed(job.name)
        subjects = sorted((decision.exclusions if is_shrinking else job.own_hosts).intersection(noticed))
        notices, about = self._reported(job.name, subjects, noticed, now)
        noticed_at = min((notice.first_seen for notice in notices.values()), default=None)
        sources = {notice.source for notice in notices.values() if notice.first_seen <= since}
        group = DecidedGroup(
            job=job.name,
            uid=job.uid,
            outcome=decided,
            at=since,
            run=decision.run,
            generation=_generation(job, decided),
            reason=decision.reason,
            sources=tuple(sorted(sources)),
            subjects=tuple(subjects),
            noticed_at=noticed_at,
            deadline=None,
            cause=stored_cause(job, decided, sources),
        )
        answer = observed.acknowledgement
        is_confirmed = not is_shrinking or observed.applied >= decision.excluded_at
        trace = self._open[job.name] = _OpenTrace(
            ids=trace_of(job, decided),
            group=group,
            begins=min(instant for instant in (since, noticed_at) if instant is not None),
            generation=group.generation,
            phase=decision.phase,
            since=since,
            reason=decision.reason,
            marks=_marks(job, group),
            notices={notice.id: notice.source for notice in notices.values()},
            subjects=about,
            ordered=None if is_confirmed else (decision.excluded_at, since),
            answer=answer if answer is not None and answer.run >= observed.run else None,
            taken_over=True,
        )
        self._await_more(trace)

    def on_change(self, change: Change) -> None:
        match change:
            case NoticeChanged(before, after, at):
                self._notice_changed(before, after, at)
            case JobForgotten(before, at):
                self._sent.pop(before.name, None)
                trace = self._open.pop(before.name, None)
                if trace is not None:
                    self._phase(trace, at)
                    self._end(trace, at, "The job was deleted, or is not supervised any more.")
            case JobChanged(before, after, at) if before is not None:
                decided = outcome_of(before, after)
                if decided is not None:
                    self._decided(before, after, decided, at)
                trace = self._open.get(after.name)
                if trace is not None:
                    self._follow(trace, before, after, at)
                if after.over:
                    self._sent.pop(after.name, None)

    def on_directives_sent(self, job: JobName, directives: Collection[ProcessDirective]) -> None:
        """Called after the directives of a change were sent; see `supervisor.observability.hooks.MetricsHooks`."""
        now = self._now()
        for directive in directives:
            if directive.kind is ProcessDirectiveKind.RUN:
                continue
            sent = self._sent.setdefault(job, {})
            known = sent.get(directive.kind)
            if known is None or known[0] != directive.generation:
                sent[directive.kind] = (directive.generation, now)
        trace = self._open.get(job)
        if trace is not None:
            self._directives(trace)

    def _notice_changed(self, before: ReclaimNotice | None, after: ReclaimNotice, at: float) -> None:
        if after.state is NoticeState.ACTIVE:
            known = self._notices.get(after.id)
            if known is not None and before is not None and before.episode == after.episode:
                known.notice = after
                return
            self._forget(after)
            if len(self._notices) < MAX_NOTICES:
                self._know(after, at)
                self._join(after, at)
            return
        known = self._forget(after)
        if known is None:
            return
        ended_at = at if after.ended_at is None else min(at, after.ended_at)
        traces = [self._open[job] for job in known.jobs if job in self._open]
        for trace in traces:
            if len(trace.events) < MAX_NAMES:
                trace.events.append(SpanEvent(f"notice {after.state}", ended_at, _of_notice(after)))
        # What an earlier leader has decided about it is not known.
        if not known.jobs and known.stored_at is not None:
            ids = trace_ids(after.id, after.episode, int(after.first_seen))
            attributes = {**_of_notice(after), f"{_P}outcome": str(after.state), f"{_P}drill": after.simulated}
            self._put(
                TraceSpan(
                    name="notice",
                    trace=ids,
                    root=True,
                    begins=after.first_seen,
                    ends=ended_at,
                    attributes=attributes,
                )
            )

    def _know(self, notice: ReclaimNotice, stored_at: float | None) -> None:
        self._notices[notice.id] = _KnownNotice(notice, stored_at)
        self._subjects.setdefault(_place(notice), _NoticedSubject()).notices.add(notice.id)

    def _forget(self, notice: ReclaimNotice) -> _KnownNotice | None:
        """Forgets a notice, and the traces of which it was the last one that held."""
        known = self._notices.pop(notice.id, None)
        if known is not None:
            subject = self._subjects[_place(notice)]
            subject.notices.discard(notice.id)
            for trace in tuple(subject.traces):
                trace.holding.discard(notice.id)
                if not trace.holding:
                    self._await_no_more(trace)
            self._drop_if_unused(_place(notice))
        return known

    def _reported(
        self, job: JobName, hosts: Iterable[Host], noticed: Mapping[Host, ReclaimNotice], at: float
    ) -> tuple[Mapping[NoticeId, ReclaimNotice], set[str]]:
        """Returns the notices about hosts of a job that count at an instant, of all sources, and what they are about.

        The most urgent one of each host, which `noticed` has, comes first.
        """
        placements, notices, about = self._placements(job), dict[NoticeId, ReclaimNotice](), set[str]()
        for host in hosts:
            if host in noticed:
                notices.setdefault(noticed[host].id, noticed[host])
            placement = None if placements is None else placements.get(host)
            about.update((host,) if placement is None else (placement.node, placement.pod))
        others = (each for place in sorted(about & self._subjects.keys()) for each in self._subjects[place].notices)
        known = (self._notices[each].notice for each in sorted(others) if each not in notices)
        return notices | {each.id: each for each in self._counting(known, at)}, about

    def _counting(self, notices: Iterable[ReclaimNotice], at: float) -> Sequence[ReclaimNotice]:
        """Returns those of these notices that a decision heeds at an instant."""
        return by_urgency(filter(self._binds, notices), at, self._policy).acted_on

    def _await_more(self, trace: _OpenTrace) -> None:
        """Has further notices about the same hosts join a trace, as long as one of its own holds."""
        trace.holding = trace.notices.keys() & self._notices.keys()
        for each in trace.holding:
            self._notices[each].jobs.add(trace.group.job)
        if trace.holding:
            for place in trace.subjects:
                self._subjects.setdefault(place, _NoticedSubject()).traces.append(trace)

    def _await_no_more(self, trace: _OpenTrace) -> None:
        for place in trace.subjects:
            if (subject := self._subjects.get(place)) is not None and trace in subject.traces:
                subject.traces.remove(trace)
                self._drop_if_unused(place)

    def _drop_if_unused(self, place: str) -> None:
        subject = self._subjects.get(place)
        if subject is not None and not subject.notices and not subject.traces:
            del self._subjects[place]

    def _join(self, notice: ReclaimNotice, at: float) -> None:
        """Tells of a notice in the traces of earlier decisions about its host: another source reports one reclaim."""
        if not (counting := self._counting([notice], at)):
            return
        for trace in self._subjects[_place(notice)].traces:
            self._notices[notice.id].jobs.add(trace.group.job)
            trace.notices[notice.id] = notice.source
            trace.holding.add(notice.id)
            if len(trace.notices) <= MAX_NAMES:
                self._tell(trace, counting[0])

    def _tell(self, trace: _OpenTrace, notice: ReclaimNotice) -> float:
        """Tells of a notice in a trace; returns the instant at which it was stored."""
        seen = self._notices.get(notice.id)
        stored_at = None if seen is None else seen.stored_at
        # A notice that an earlier leader has stored is a point in time.
        ends = notice.first_seen if stored_at is None else max(notice.first_seen, stored_at)
        self._child(trace, "notice", (notice.first_seen, ends), _of_notice(notice))
        return ends

    def _decided(self, before: SupervisedJob, after: SupervisedJob, decided: GroupOutcome, at: float) -> None:
        noticed = self._noticed(after.name)
        group = begun(before, after, decided, at, noticed, self._policy)
        notices, about = self._reported(after.name, group.subjects, noticed, at)
        ids, known = trace_of(after, decided), self._open.get(after.name)
        ordered = after.decision.excluded_at if decided is GroupOutcome.SHRUNK else None
        if after.decision.phase is Phase.SUSPENDED:  # Two decisions may be reported as one change.
            ordered = after.decision.generation
        # Hosts that went without a notice were missed for a while before.
        decided_from = at if notices or before.decision.below_min_since is None else before.decision.below_min_since
        trace = _OpenTrace(
            ids=ids,
            group=group,
            begins=min((decided_from, *(notice.first_seen for notice in notices.values()))),
            generation=_generation(after, decided),
            phase=after.decision.phase,
            since=at,
            reason=after.decision.reason,
            marks=_marks(after, group),
            notices={notice.id: notice.source for notice in notices.values()},
            subjects=about,
            ordered=None if ordered is None else (ordered, at),
        )
        if known is not None and known.ids == ids:  # Stopped again before its next run was seen.
            self._phase(known, at)
            trace.begins, trace.events, trace.earlier = known.begins, known.events, known.earlier
            trace.taken_over, trace.count = known.taken_over, known.count
            trace.notices, trace.subjects = known.notices | trace.notices, known.subjects | trace.subjects
            self._await_no_more(known)
        elif known is not None:
            self._phase(known, at)
            self._end(known, at, "A further decision about the job followed.")
            trace.earlier = known.ids
        self._open[after.name] = trace
        for notice in islice(notices.values(), MAX_NAMES):
            decided_from = min(decided_from, self._tell(trace, notice))
        self._await_more(trace)
        attributes: dict[str, Attribute] = {
            f"{_P}generation": trace.generation,
            f"{_P}reason": group.reason,
        }
        self._child(trace, "decide", (decided_from, at), attributes)
        self._directives(trace)

    def _follow(self, trace: _OpenTrace, before: SupervisedJob, after: SupervisedJob, at: float) -> None:
        decision, is_stop = after.decision, trace.group.outcome is GroupOutcome.STOPPED
        if is_stop:
            self._acknowledged(trace, after.observed.acknowledgement)
            if is_unsaved(before, after):
                trace.error = decision.reason
        if decision.phase is not trace.phase:
            if is_stop and decision.phase is Phase.SUSPENDED and trace.phase not in SUSPENDED:
                trace.ordered = (decision.generation, at)
            has_failed = trace.phase is Phase.RESUMING and decision.phase is Phase.SUSPENDED
            self._phase(trace, at, error=decision.reason if has_failed else "")
            trace.phase, trace.since, trace.reason = decision.phase, at, decision.reason
        if trace.ordered is not None and after.observed.applied >= trace.ordered[0]:
            generation, ordered_at = trace.ordered
            trace.ordered = None
            self._child(trace, "order", (ordered_at, at), {f"{_P}generation": generation})
        is_waiting = decision.phase is Phase.SHRINKING or (
            decision.phase is Phase.RUNNING and trace.ordered is not None
        )
        if decision.phase in OVER if is_stop else not is_waiting:
            if decision.phase is Phase.TIMED_OUT:
                trace.error = decision.reason
            del self._open[after.name]
            self._end(trace, at, decision.reason)

    def _acknowledged(self, trace: _OpenTrace, answer: Acknowledgement | None) -> None:
        group = trace.group
        is_new = answer is not None and answer != trace.answer
        if answer is None or not is_new or answer.run < group.run or answer.generation < trace.generation:
            return
        trace.answer = answer
        attributes: dict[str, Attribute] = {
            f"{_P}acknowledgement": str(answer.kind),
            f"{_P}rank": answer.rank,
            f"{_P}generation": answer.generation,
        }
        if answer.step is not None:
            attributes[f"{_P}step"] = answer.step
        if group.deadline is not None:
            attributes[f"{_P}seconds_before_deadline"] = group.deadline - answer.at
        is_failed = answer.kind is AcknowledgementKind.FAILED
        error = f"Rank {answer.rank} {outcome(answer.kind, answer.step, answer.error)}." if is_failed else ""
        self._child(trace, "acknowledge", (group.at, answer.at), attributes, error=error)

    def _directives(self, trace: _OpenTrace) -> None:
        """Reports the directives that follow from the decision, each kind once."""
        for kind, (generation, at) in self._sent.get(trace.group.job, {}).items():
            if generation == trace.generation and kind not in trace.told:
                trace.told.add(kind)
                attributes: dict[str, Attribute] = {f"{_P}directive": str(kind), f"{_P}generation": generation}
                self._child(trace, "directive", (trace.group.at, at), attributes)

    def _phase(self, trace: _OpenTrace, at: float, *, error: str = "") -> None:
        """Reports the phase that ends now, with the reason for which it began."""
        if trace.phase is not Phase.RUNNING:  # A job that has shrunk may run all the time.
            attributes = {f"{_P}reason": trace.reason}
            self._child(trace, trace.phase.lower(), (trace.since, at), attributes, error=error)

    def _child(
        self,
        trace: _OpenTrace,
        name: str,
        during: tuple[float, float],
        attributes: Mapping[str, Attribute],
        *,
        error: str = "",
    ) -> None:
        trace.count += 1
        begins, ends = during
        if trace.count <= MAX_SPANS:
            self._put(
                TraceSpan(
                    name=name,
                    trace=trace.ids,
                    begins=begins,
                    ends=max(begins, ends),
                    attributes={**trace.marks, **attributes},
                    error=error,
                )
            )

    def _end(self, trace: _OpenTrace, at: float, words: str) -> None:
        group = trace.group
        attributes: dict[str, Attribute] = {
            **trace.marks,
            f"{_P}outcome": str(group.outcome),
            f"{_P}run": group.run,
            f"{_P}subjects": _names(group.subjects),
            f"{_P}subject_count": len(group.subjects),
            f"{_P}sources": _names(sorted(set(trace.notices.values()))),
            f"{_P}notice_ids": _names(sorted(trace.notices)),
            f"{_P}reason": group.reason,
            f"{_P}ended": words,
        }
        if trace.answer is not None and trace.answer.step is not None:
            attributes[f"{_P}step"] = trace.answer.step
        if trace.taken_over:
            attributes[f"{_P}taken_over"] = True
        if trace.count > MAX_SPANS:
            attributes[f"{_P}spans_left_out"] = trace.count - MAX_SPANS
        self._put(
            TraceSpan(
                name=str(group.cause),
                trace=trace.ids,
                root=True,
                begins=trace.begins,
                ends=max(trace.begins, at),
                attributes=attributes,
                error=trace.error,
                events=tuple(trace.events),
                links=() if trace.earlier is None else (trace.earlier,),
            )
        )


def _generation(job: SupervisedJob, decided: GroupOutcome) -> int:
    """The generation of the directives that follow from a decision."""
    decision = job.decision
    if decided is GroupOutcome.SHRUNK:
        return decision.excluded_at
    return decision.generation if decision.stop is None else decision.stop.generation


def _marks(job: SupervisedJob, group: DecidedGroup) -> Mapping[str, Attribute]:
    where = namespace(job.name)
    return {
        **({"k8s.namespace.name": where} if where else {}),
        f"{_P}job": bare_name(job.name),
        f"{_P}kind": kind_of(job.name),
        f"{_P}cause": str(group.cause),
        f"{_P}drill": group.cause is GroupCause.DRILL or is_drill(group.reason),
    }


def _place(notice: ReclaimNotice) -> str:
    """The name of the node, or the uid of the pod, that a notice is about."""
    return notice.subject.name if notice.subject.kind is SubjectKind.NODE else notice.subject.uid


def _of_notice(notice: ReclaimNotice) -> Mapping[str, Attribute]:
    return {
        f"{_P}notice_id": notice.id,
        f"{_P}source": notice.source,
        f"{_P}subject": f"{notice.subject.kind}/{notice.subject.name}",
        f"{_P}class": str(notice.notice_class),
        f"{_P}reason": sentence(notice),
    }


def _names(names: Iterable[str]) -> Sequence[str]:
    return tuple(islice(names, MAX_NAMES))
