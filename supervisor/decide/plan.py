"""`plan`: one job, the facts about it and the time, to a decision with a reason.

Each phase has a handler that makes one transition; `plan` repeats them until nothing changes, so that the outcome does
not depend on how often it is called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from supervisor.decide.notices import deadline_of
from supervisor.decide.policy import Policy
from supervisor.decide.reasons import (
    acknowledged,
    below_minimum,
    collecting,
    finished,
    joined,
    launcher_noticed,
    lost_hosts,
    resume_failed,
    retrying,
    run_ended,
    running,
    shrinking,
    started,
    stop_unanswered,
    timed_out,
    waiting,
    withdrawn,
)
from supervisor.domain.ids import Host
from supervisor.domain.job import Acknowledgement, Decision, Observed, Phase, Spec, Stop, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.domain.order import Action, EndJob, SetHostList, StartRun, SuspendRun

_WAITS = (Phase.WAITING, Phase.SUSPENDED)
_MOST_TRANSITIONS = 8
_MOST_BACKOFF_DOUBLINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a decision about one job may look at, besides the job itself.

    `notices` are the hosts that must not be used; `granted` what the job may start on or grow by;
    `rank_zero_missing_since` the instant since which no process of the present run says that it is rank 0 (None = one
    does). It is never earlier than the start of the supervisor that says it.
    """

    notices: Mapping[Host, ReclaimNotice] = field(default_factory=dict)
    granted: frozenset[Host] = frozenset()
    rank_zero_missing_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A decision, the actions that are still to be done for it, and when to look again (None = when facts change)."""

    decision: Decision
    actions: tuple[Action, ...]
    wake_at: float | None


@dataclass(frozen=True, slots=True)
class _Situation:
    """The arguments of `plan`, with the sets that every handler asks for.

    `job.decision` is where the present call of `plan` has come to, `stored` where it began.
    """

    job: SupervisedJob
    stored: Decision
    view: View
    now: float
    policy: Policy

    @property
    def previous(self) -> Decision:
        return self.job.decision

    @property
    def present(self) -> frozenset[Host]:
        """The job's hosts that the operator still lists."""
        return self.previous.hosts & self.job.observed.hosts

    @property
    def doomed(self) -> frozenset[Host]:
        return self.present.intersection(self.view.notices)

    def deadline(self, hosts: frozenset[Host]) -> float | None:
        """When the first of `hosts` is gone; None where none has a notice."""
        return min(
            (deadline_of(self.view.notices[h], self.policy) for h in hosts & self.view.notices.keys()), default=None
        )


def first_decision(spec: Spec, observed: Observed, now: float) -> Decision:
    """Where a job begins that has just been registered; one whose run goes on already is taken over, not stopped.

    The launcher may have orders from before the store was lost: the generation goes on from there.
    """
    generation = observed.applied + 1
    if observed.running:
        reason = running(observed.run, len(observed.hosts))
        return Decision(
            generation=generation, phase=Phase.RUNNING, reason=reason, run=observed.run, hosts=observed.hosts
        )
    return Decision(
        generation=generation, phase=Phase.WAITING, reason=waiting(spec), run=observed.run, waiting_since=now
    )


def plan(job: SupervisedJob, view: View, now: float, policy: Policy) -> Plan:
    """Decides what is to become of `job`; pure and idempotent. Instants are Unix seconds."""
    decision = job.decision
    for _ in range(_MOST_TRANSITIONS):
        situation = _Situation(replace(job, decision=decision), job.decision, view, now, policy)
        following = _step(situation)
        if following == decision:
            break
        decision = following
    if decision != job.decision:
        decision = _numbered(decision, job.decision)
    settled = replace(job, decision=decision)
    wake_at = _wake_at(_Situation(settled, decision, view, now, policy))
    return Plan(decision=decision, actions=actions(settled), wake_at=wake_at)


def actions(job: SupervisedJob) -> tuple[Action, ...]:
    """What is still to be done so that what is so becomes what was decided; every action may be repeated."""
    decision, observed = job.decision, job.observed
    if job.over:
        return ()
    if decision.phase is Phase.TIMED_OUT:
        return (EndJob(),)
    if decision.phase in _WAITS:
        run = max(observed.run, decision.run)
        return (SuspendRun(run),) if _run_is_possible(decision, decision, observed) else ()
    todo: list[Action] = []
    if observed.applied < decision.generation:
        todo.append(SetHostList(decision.hosts, decision.exclusions))
    if observed.run < decision.run:
        todo.append(StartRun(decision.run))
    return tuple(todo)


def _run_is_possible(decision: Decision, told: Decision, observed: Observed) -> bool:
    """Whether a job that is to wait has a run, or may still get one on its hosts; `told` is what its launcher hears.

    A run that was ordered, or that the launcher starts again by itself, may be starting right now and not be reported:
    only an order to wait that is confirmed rules that out.
    """
    confirmed = told.phase in _WAITS and observed.applied >= told.generation
    return observed.running or (bool(decision.hosts) and not confirmed)


def _numbered(decision: Decision, previous: Decision) -> Decision:
    """Gives a changed decision its generation, and those parts their generation that are known by one."""
    generation = previous.generation + 1
    decision = replace(decision, generation=generation)
    if decision.exclusions - previous.exclusions:
        decision = replace(decision, excluded_at=generation)
    if decision.stop is not None and previous.stop is None:
        decision = replace(decision, stop=replace(decision.stop, generation=generation))
    return decision


def _step(s: _Situation) -> Decision:
    if s.job.over:
        return _finished(s)
    return _HANDLERS[s.previous.phase](s)


def _finished(s: _Situation) -> Decision:
    result = s.job.observed.result
    phase = Phase.TIMED_OUT if s.previous.phase is Phase.TIMED_OUT else Phase.FINISHED
    reason = s.previous.reason if phase is Phase.TIMED_OUT or result is None else finished(result)
    hosts = s.previous.hosts if s.job.observed.running else frozenset()
    return Decision(generation=s.previous.generation, phase=phase, reason=reason, run=s.previous.run, hosts=hosts)


def _wait(s: _Situation) -> Decision:
    """Waiting and Suspended: for the last run to end, for capacity, or for the end of max-wait-time."""
    before, spec = s.previous, s.job.spec
    if _run_is_possible(before, s.stored, s.job.observed):
        return before
    since = before.waiting_since if before.waiting_since is not None else s.now
    before = replace(before, waiting_since=since, hosts=frozenset(), exclusions=frozenset(), stop=None)
    if spec.max_wait_seconds and s.now >= since + spec.max_wait_seconds:
        return replace(before, phase=Phase.TIMED_OUT, reason=timed_out(spec), capacity_since=None)
    if not s.view.granted or spec.launcher_host in s.view.notices:
        return replace(before, capacity_since=None)
    capacity_since = before.capacity_since if before.capacity_since is not None else s.now
    before = replace(before, capacity_since=capacity_since)
    if s.now < _start_at(s, before):
        return before
    return _started(s, before)


def _start_at(s: _Situation, decision: Decision) -> float:
    """When a start on the granted hosts is due: at once at full size, else when more had its chance to arrive."""
    delay = 0.0 if len(s.view.granted) >= s.job.spec.requested_workers else s.policy.resume_delay_seconds
    return max((decision.capacity_since or s.now) + delay, decision.not_before or s.now)


def _started(s: _Situation, before: Decision) -> Decision:
    first = before.phase is Phase.WAITING
    run = max(s.job.observed.run, before.run) + 1
    return replace(
        before,
        phase=Phase.RUNNING if first else Phase.RESUMING,
        reason=started(run, len(s.view.granted), s.job.spec, first=first),
        run=run,
        hosts=s.view.granted,
        waiting_since=None,
        capacity_since=None,
        not_before=None,
        resume_until=None if first else s.now + s.policy.resume_timeout_seconds,
    )


def _live(s: _Situation) -> Decision:
    """Running, Shrinking and Resuming: the job has hosts and goes on, or must stop."""
    before, spec = s.previous, s.job.spec
    launcher = spec.launcher_host
    if launcher is not None and launcher in s.view.notices:
        return _stop(s, launcher_noticed(launcher, s.view.notices[launcher]))
    live = s.present - s.doomed
    if s.doomed and len(live) < spec.min_workers:
        return _stop(s, below_minimum(s.doomed, s.view.notices, len(live), spec))
    before = _cleared(s, before)
    if len(live) < spec.min_workers:
        return _lost(s, before, len(live))
    if before.below_min_since is not None:
        before = replace(before, below_min_since=None, reason=_running(before))
    if before.phase is Phase.RESUMING:
        return _resuming(s, before)
    return _sized(s, _restarted(s, before))


def _cleared(s: _Situation, before: Decision) -> Decision:
    """Hosts that left the operator's list leave the job; a withdrawn notice takes its exclusion back.

    Where others have joined instead, a host above the maximum is not taken back but let go.
    """
    back = (before.exclusions & s.present) - s.doomed
    room = max(0, s.job.spec.max_workers - len(s.present - s.doomed - back))
    hosts = s.present - frozenset(sorted(back)[room:])
    reason = withdrawn(back, len(hosts - s.doomed)) if back else before.reason
    return replace(before, hosts=hosts, exclusions=before.exclusions & s.doomed, reason=reason)


def _lost(s: _Situation, before: Decision, live: int) -> Decision:
    """Workers went without a notice: the rest only burn GPUs once that has lasted; until then others may join."""
    since = before.below_min_since if before.below_min_since is not None else s.now
    reason = lost_hosts(live, s.job.spec)
    if s.now >= since + s.policy.lost_grace_seconds:
        return _stop(s, reason)
    before = replace(before, below_min_since=since, window_until=None, reason=reason)
    return _grown(s, before) if before.phase is Phase.RUNNING else before


def _stop(s: _Situation, reason: str) -> Decision:
    """The host list stays as it is from here on: a change would move ranks while rank 0 saves."""
    return replace(
        s.previous,
        phase=Phase.STOPPING,
        reason=reason,
        stop=Stop(run=s.previous.run, generation=s.previous.generation, since=s.now),
        window_until=None,
        below_min_since=None,
        capacity_since=None,
        resume_until=None,
    )


def _resuming(s: _Situation, before: Decision) -> Decision:
    observed = s.job.observed
    if observed.running and observed.run >= before.run:
        return replace(
            before,
            phase=Phase.RUNNING,
            reason=running(observed.run, len(before.hosts - before.exclusions)),
            run=observed.run,
            resume_until=None,
            failed_resumes=0,
        )
    if before.resume_until is not None and s.now >= before.resume_until:
        return _resume_failed(s, before)
    return before


def _resume_failed(s: _Situation, before: Decision) -> Decision:
    """The hosts stay the job's until the launcher has confirmed that it waits (`_wait` lets go of them)."""
    doublings = min(before.failed_resumes, _MOST_BACKOFF_DOUBLINGS)
    return replace(
        before,
        phase=Phase.SUSPENDED,
        reason=resume_failed(before.run),
        resume_until=None,
        waiting_since=s.now,
        failed_resumes=before.failed_resumes + 1,
        not_before=s.now + s.policy.resume_backoff_seconds * 2**doublings,
    )


def _restarted(s: _Situation, before: Decision) -> Decision:
    """A run that failed by itself stays ordered: its launcher starts it again as the next number, which is taken over.

    A new number of ours would bypass the launcher's back-off and its limit.
    """
    observed = s.job.observed
    if observed.run > before.run:
        return replace(before, run=observed.run, reason=running(observed.run, len(before.hosts - before.exclusions)))
    failed = observed.run == before.run and not observed.running and observed.exit_code not in (None, 0)
    if failed:
        return replace(before, reason=retrying(observed))
    return before


def _sized(s: _Situation, before: Decision) -> Decision:
    """Running and Shrinking: collect a group, take it off the list at once, then grow again."""
    pending = s.doomed - before.exclusions
    if pending:
        return _collected(s, before, pending)
    if before.window_until is not None:
        before = replace(before, window_until=None, reason=_running(before))
    if before.phase is Phase.SHRINKING:
        return replace(before, phase=Phase.RUNNING, reason=_running(before)) if _is_in_place(s, before) else before
    return _grown(s, before)


def _is_in_place(s: _Situation, before: Decision) -> bool:
    """Whether the launcher leaves out what is to be left out: it has confirmed an order that said just that."""
    return s.stored.exclusions == before.exclusions and s.job.observed.applied >= s.stored.generation


def _running(decision: Decision) -> str:
    return running(decision.run, len(decision.hosts - decision.exclusions))


def _collected(s: _Situation, before: Decision, pending: frozenset[Host]) -> Decision:
    until = _window_end(s, pending)
    if s.now < until:
        return replace(before, window_until=until, reason=collecting(pending, s.view.notices))
    left = before.hosts - s.doomed
    return replace(
        before,
        phase=Phase.SHRINKING,
        exclusions=s.doomed,
        window_until=None,
        reason=shrinking(pending, s.view.notices, len(left), s.job.spec),
    )


def _window_end(s: _Situation, pending: frozenset[Host]) -> float:
    """The group is complete a window after its first notice, or when the first deadline needs it to be."""
    first_seen = min(s.view.notices[host].first_seen for host in pending)
    deadline = s.deadline(pending)
    until = first_seen + s.policy.window_seconds
    return until if deadline is None else min(until, deadline - s.policy.margin_seconds)


def _grown(s: _Situation, before: Decision) -> Decision:
    """Hosts that came together join together: every change of the list costs a re-rendezvous."""
    joining = s.view.granted - before.hosts
    if not joining:
        return replace(before, capacity_since=None)
    since = before.capacity_since if before.capacity_since is not None else s.now
    if s.now < since + s.policy.resume_delay_seconds:
        return replace(before, capacity_since=since)
    hosts = before.hosts | joining
    return replace(before, hosts=hosts, capacity_since=None, reason=joined(joining, len(hosts - before.exclusions)))


def _stopping(s: _Situation) -> Decision:
    """Until rank 0 has acknowledged, the run has ended, or there is no more time."""
    before, observed, stop = s.previous, s.job.observed, s.previous.stop
    if stop is None:  # Never written so; a job must not hang on it.
        return _suspended(s, before.reason)
    if observed.run > stop.run:
        # The launcher restarted by itself before it heard of the STOP: the STOP is for the new run.
        stop = replace(stop, run=observed.run)
    if not observed.running:
        return _suspended(s, run_ended(before.reason, observed))
    if _answers(observed.acknowledgement, stop):
        return _suspended(s, acknowledged(before.reason, observed.acknowledgement))
    if s.now >= _stop_deadline(s, stop):
        return _suspended(s, stop_unanswered(before.reason))
    everyone = stop.everyone or s.now >= _everyone_at(s, stop)
    return replace(before, run=max(before.run, stop.run), stop=replace(stop, everyone=everyone))


def _answers(acknowledgement: Acknowledgement | None, stop: Stop) -> bool:
    return (
        acknowledgement is not None
        and acknowledgement.run == stop.run
        and acknowledgement.generation >= stop.generation
    )


def _stop_deadline(s: _Situation, stop: Stop) -> float:
    """When waiting for rank 0 ends: the first doomed host dies and breaks the run.

    Rank 0 has the margin even where that instant has passed: it may be well, and in the middle of its checkpoint.
    """
    deadline = s.deadline(_stop_hosts(s))
    if deadline is None:
        return stop.since + s.policy.stop_timeout_seconds
    return max(deadline, stop.since + s.policy.margin_seconds)


def _everyone_at(s: _Situation, stop: Stop) -> float:
    """When the others are told as well: near the deadline, or when nobody is rank 0."""
    at = _stop_deadline(s, stop) - s.policy.margin_seconds
    missing = s.view.rank_zero_missing_since
    if missing is None:
        return at
    return min(at, max(missing, stop.since) + s.policy.rank_zero_grace_seconds)


def _stop_hosts(s: _Situation) -> frozenset[Host]:
    """The hosts whose end breaks the run; one that was taken off the list before the STOP can go without harm."""
    before, launcher = s.previous, s.job.spec.launcher_host
    in_use = before.hosts - before.exclusions if s.job.observed.applied >= before.excluded_at else before.hosts
    return in_use if launcher is None else in_use | {launcher}


def _suspended(s: _Situation, reason: str) -> Decision:
    """The hosts stay the job's until its command has ended and can not begin again (`_wait` lets go of them)."""
    return replace(s.previous, phase=Phase.SUSPENDED, reason=reason, waiting_since=s.now, stop=None)


def _timed_out(s: _Situation) -> Decision:
    return s.previous


def _wake_at(s: _Situation) -> float | None:
    """The next instant at which time alone changes the decision."""
    decision = s.previous
    if s.job.over:
        return None
    return min((at for at in _instants(s, decision) if at is not None and at > s.now), default=None)


def _instants(s: _Situation, decision: Decision) -> list[float | None]:
    if decision.phase in _WAITS:
        most = s.job.spec.max_wait_seconds
        end = decision.waiting_since + most if most and decision.waiting_since is not None else None
        return [end, _start_at(s, decision) if s.view.granted else None]
    if decision.phase is Phase.STOPPING and decision.stop is not None:
        return [_everyone_at(s, decision.stop), _stop_deadline(s, decision.stop)]
    grow = None if decision.capacity_since is None else decision.capacity_since + s.policy.resume_delay_seconds
    lost = None if decision.below_min_since is None else decision.below_min_since + s.policy.lost_grace_seconds
    return [decision.window_until, decision.resume_until, grow, lost]


_HANDLERS: Mapping[Phase, Callable[[_Situation], Decision]] = {
    Phase.WAITING: _wait,
    Phase.SUSPENDED: _wait,
    Phase.RUNNING: _live,
    Phase.SHRINKING: _live,
    Phase.RESUMING: _live,
    Phase.STOPPING: _stopping,
    Phase.TIMED_OUT: _timed_out,
    Phase.FINISHED: _finished,
}
