"""`plan`: the pure function from a job, its facts and the time to a decision with a reason.

Each phase has a handler that makes one transition; `plan` repeats them until nothing changes, so that the outcome does
not depend on how often it is called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from supervisor.decide.agreement import instants
from supervisor.decide.live import grows_at, live
from supervisor.decide.policy import Policy
from supervisor.decide.reasons import finished, running, waiting
from supervisor.decide.rendezvous import instants as round_instants
from supervisor.decide.situation import JobFacts, Situation
from supervisor.decide.stopping import (
    acknowledged_at,
    awaited_until,
    everyone_at,
    is_saving,
    last_moment,
    saving_until,
    stop_deadline,
    stopping,
)
from supervisor.decide.urgency import deadline_of, next_change
from supervisor.decide.waiting import WAITS, enters_queue, queued, run_is_possible, start_at, wait
from supervisor.domain.agreement import Purpose
from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, Decision, Observed, Phase, Result, Spec, Stop, SupervisedJob
from supervisor.domain.order import (
    Action,
    AddHosts,
    EndJob,
    LeaveHosts,
    RemoveHosts,
    SetHostList,
    StartRun,
    StopProcesses,
    SuspendRun,
)

_MAX_TRANSITIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A decision, its outstanding actions, and when to plan again (None: when facts change)."""

    decision: Decision
    actions: tuple[Action, ...]
    wake_at: float | None


def first_decision(spec: Spec, observed: Observed, now: float) -> Decision:
    """The first decision about a registered job; a run that is already running is taken over.

    The launcher may have orders from before the store was lost, so the generation continues from there.
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


def plan(job: SupervisedJob, facts: JobFacts, now: float, policy: Policy) -> Plan:
    """Plans one job; pure and idempotent. Instants are Unix seconds."""
    decision = job.decision
    for _ in range(_MAX_TRANSITIONS):
        situation = Situation(replace(job, decision=decision), job.decision, facts, now, policy)
        following = _step(situation)
        if following == decision:
            break
        decision = following
    if decision != job.decision:
        decision = _numbered(decision, job.decision)
    settled = replace(job, decision=decision)
    wake_at = _wake_at(Situation(settled, decision, facts, now, policy))
    todo = (*actions(settled), *_last_moments(Situation(settled, decision, facts, now, policy)))
    return Plan(decision=decision, actions=todo, wake_at=wake_at)


def actions(job: SupervisedJob) -> tuple[Action, ...]:
    """The actions that lead from the observed state to the decided one; every action may be repeated."""
    decision, observed = job.decision, job.observed
    if job.over or decision.phase is Phase.QUEUED:
        return ()
    if decision.phase in (Phase.TIMED_OUT, Phase.FINISHED):
        return (EndJob(Result.TIMED_OUT if decision.phase is Phase.TIMED_OUT else Result.TERMINATED),)
    if decision.phase in WAITS:
        run = max(observed.run, decision.run)
        return (SuspendRun(run),) if run_is_possible(decision, decision, observed) else ()
    todo: list[Action] = []
    if job.spec.can(Capability.SIGNALS_PODS) and decision.stop is not None and decision.stop.everyone:
        todo.append(StopProcesses(decision.stop.run))
    # The host list does not change while ranks agree: it would only be confirmed once more for each attempt.
    is_settled = decision.agreement is None or decision.agreement.committed
    if observed.applied < decision.generation and is_settled:
        todo.append(SetHostList(decision.hosts, decision.exclusions))
    if observed.run < decision.run:
        todo.append(StartRun(decision.run))
    # Only after the launcher has confirmed its list: by then it excludes the hosts that it cannot reach.
    if decision.growing and decision.phase is Phase.RUNNING and observed.applied >= decision.generation:
        growth = decision.growing
        todo.append(AddHosts(decision.run, growth.workers, growth.number, growth.until))
    return tuple(todo)


def _last_moments(s: Situation) -> tuple[Action, ...]:
    """The actions for excluded hosts whose deadline is near.

    Pods that will be replaced are deleted at the last moment: earlier, a replacement would get the same machine.
    """
    decision = s.previous
    is_live = decision.phase in (Phase.RUNNING, Phase.SHRINKING) and not s.job.over
    if not is_live or not _left_out(s):
        return ()
    noticed, todo = decision.exclusions & s.noticed, list[Action]()
    leaving = frozenset(host for host in noticed if s.now >= _told_at(s, host))
    if leaving and s.job.spec.can(Capability.SIGNALS_PODS):
        todo.append(LeaveHosts(decision.run, leaving))
    removed = frozenset(host for host in noticed if s.now >= _removed_at(s, host))
    if removed and s.job.spec.can(Capability.REPLACES_HOSTS):
        todo.append(RemoveHosts(decision.run, removed))
    return tuple(todo)


def _left_out(s: Situation) -> bool:
    """Whether the launcher has confirmed the exclusions."""
    return s.job.observed.applied >= s.previous.excluded_at


def _told_at(s: Situation, host: Host) -> float:
    """When processes without a stream are told to leave: they learn of it up to two seconds later."""
    return deadline_of(s.facts.notices[host], s.policy) - s.policy.margin_seconds


def _removed_at(s: Situation, host: Host) -> float:
    """When a pod is deleted, as late as LEAVE: a group may be excluded only `margin_seconds` before its deadline."""
    return deadline_of(s.facts.notices[host], s.policy) - s.policy.leave_margin_seconds


def _numbered(decision: Decision, previous: Decision) -> Decision:
    """Sets the generation of a changed decision, and of new exclusions, a new stop or a new checkpoint in it."""
    generation = previous.generation + 1
    decision = replace(decision, generation=generation)
    if decision.exclusions - previous.exclusions:
        decision = replace(decision, excluded_at=generation)
    if decision.stop is not None and previous.stop is None:
        decision = replace(decision, stop=replace(decision.stop, generation=generation))
    if decision.checkpoint is not None and decision.checkpoint != previous.checkpoint:
        decision = replace(decision, checkpoint=replace(decision.checkpoint, generation=generation))
    return decision


def _step(s: Situation) -> Decision:
    if s.job.over:
        return _finished(s)
    if enters_queue(s):
        return queued(s)
    return _HANDLERS[s.previous.phase](s)


def _finished(s: Situation) -> Decision:
    result = s.job.observed.result
    phase = Phase.TIMED_OUT if s.previous.phase is Phase.TIMED_OUT else Phase.FINISHED
    # A decided end has a reason that says more than its result.
    is_known = phase is Phase.TIMED_OUT or (s.previous.phase is phase and result is Result.TERMINATED)
    reason = s.previous.reason if is_known or result is None else finished(result)
    hosts = s.previous.hosts if s.job.observed.running else frozenset()
    return Decision(generation=s.previous.generation, phase=phase, reason=reason, run=s.previous.run, hosts=hosts)


def _timed_out(s: Situation) -> Decision:
    return s.previous


def _wake_at(s: Situation) -> float | None:
    """The next instant at which time alone changes the decision."""
    decision = s.previous
    if s.job.over:
        return None
    return min((at for at in _instants(s, decision) if at is not None and at > s.now), default=None)


def _instants(s: Situation, decision: Decision) -> list[float | None]:
    if decision.phase in WAITS:
        most = s.job.spec.max_wait_seconds
        end = decision.waiting_since + most if most and decision.waiting_since is not None else None
        lost = s.job.observed.launcher_lost_since
        given_up = None if lost is None else lost + s.policy.launcher_grace_seconds
        return [end, given_up, start_at(s, decision) if s.facts.granted else None]
    if decision.phase is Phase.STOPPING and decision.stop is not None:
        return _stop_instants(s, decision.stop)
    grow = None if decision.capacity_since is None else _grows_at(s, decision)
    asked = None if decision.growing is None else decision.growing.until
    lost = None if decision.below_min_since is None else decision.below_min_since + s.policy.lost_grace_seconds
    acts_late = not s.job.spec.capabilities.isdisjoint((Capability.SIGNALS_PODS, Capability.REPLACES_HOSTS))
    noticed = decision.exclusions & s.noticed if acts_late else frozenset[Host]()
    moments = [at(s, host) for host in noticed for at in (_told_at, _removed_at)]
    ahead = [next_change(each, s.now, s.policy) for notices in s.facts.ahead.values() for each in notices]
    agreed = [at for purpose in Purpose for at in instants(s, purpose)]
    saved = saving_until(s, decision.agreement) if decision.agreement is not None and is_saving(s) else None
    settled = [decision.window_until, decision.resume_until, grow, asked, lost, saved, awaited_until(s)]
    return [*settled, *agreed, *moments, *ahead, *round_instants(s)]


def _stop_instants(s: Situation, stop: Stop) -> list[float | None]:
    answer = s.job.observed.acknowledgement
    answered = None if answer is None else acknowledged_at(s, answer)
    moments = [everyone_at(s, stop), last_moment(s, stop), stop_deadline(s, stop), answered]
    return [*moments, *instants(s, Purpose.STOP)]


def _grows_at(s: Situation, decision: Decision) -> float:
    if s.job.spec.can(Capability.GROWS) and decision.phase is Phase.RUNNING:
        return grows_at(decision, s.policy)
    return (decision.capacity_since or 0.0) + s.policy.resume_delay_seconds


_HANDLERS: Mapping[Phase, Callable[[Situation], Decision]] = {
    Phase.QUEUED: queued,
    Phase.WAITING: wait,
    Phase.SUSPENDED: wait,
    Phase.RUNNING: live,
    Phase.SHRINKING: live,
    Phase.RESUMING: live,
    Phase.STOPPING: stopping,
    Phase.TIMED_OUT: _timed_out,
    Phase.FINISHED: _finished,
}
