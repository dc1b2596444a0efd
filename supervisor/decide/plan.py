"""Defines `plan`, the pure function from a job, its facts and the time to a decision with a reason.

Each phase has a rule that makes one transition; `plan` repeats them until nothing changes, so that the outcome does
not depend on how often it is called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from supervisor.decide.live import live
from supervisor.decide.policy import Policy
from supervisor.decide.reasons import running, waiting
from supervisor.decide.situation import JobFacts, Situation
from supervisor.decide.stopping import stopping
from supervisor.decide.urgency import deadline_of, next_change
from supervisor.decide.waiting import enters_queue, queued, run_is_possible, wait
from supervisor.domain.ids import Host
from supervisor.domain.job import (
    NO_CHECKPOINT,
    WAITS,
    Capability,
    Decision,
    Observed,
    Phase,
    Result,
    Spec,
    SupervisedJob,
)
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
    WriteHubMarks,
)

_MAX_TRANSITIONS = 8


class UnsettledPlanError(Exception):
    """The rules contradict each other, so there is no decision about the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A decision, its outstanding actions, and when to plan again (None: only when facts change)."""

    decision: Decision
    actions: tuple[Action, ...]
    wake_at: float | None


def first_decision(spec: Spec, observed: Observed, now: float) -> Decision:
    """The first decision about a registered job. It takes over a run that is already running.

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
    """Plans one job; pure and idempotent. Instants are Unix seconds.

    Raises:
        UnsettledPlanError: Each transition leads to another one.
    """
    decision = before = job.decision
    for _ in range(_MAX_TRANSITIONS):
        situation = Situation(replace(job, decision=decision), job.decision, facts, now, policy)
        if job.over:
            following = _finished(situation)
        elif enters_queue(situation):
            following = queued(situation)
        else:
            following = _RULES[decision.phase](situation)
        if following == decision:
            break
        before, decision = decision, following
    else:
        states = " and ".join(f'{each.phase.value} of run {each.run} ("{each.reason}")' for each in (before, decision))
        raise UnsettledPlanError(f"no decision lasts: {states} follow each other")
    # Stored, as only the leader that served the run has heard of it.
    if decision.phase in WAITS and facts.saved_step is not None:
        decision = replace(decision, resumes_from=facts.saved_step)
    if decision != job.decision:
        decision = _numbered(decision, job.decision)
    settled = replace(job, decision=decision)
    # The facts, too, change with time alone: a notice that is ahead becomes one that is acted on.
    for notice in [] if job.over else [each for notices in facts.ahead.values() for each in notices]:
        situation.reached(next_change(notice, now, policy) or now)
    # The last transition has changed nothing, so its instants are those of the whole decision.
    todo = (*actions(settled), *_last_moments(replace(situation, job=settled)))
    return Plan(decision=decision, actions=todo, wake_at=situation.alarm.at)


def actions(job: SupervisedJob) -> tuple[Action, ...]:
    """The actions that lead from the observed state to the decided one; every action may be repeated."""
    decision, observed = job.decision, job.observed
    if job.over:
        return ()
    if decision.phase is Phase.QUEUED:
        return _hub_marks(job)
    if decision.phase in (Phase.TIMED_OUT, Phase.FINISHED):
        return (EndJob(Result.TIMED_OUT if decision.phase is Phase.TIMED_OUT else Result.TERMINATED),)
    if decision.phase in WAITS:
        run = max(observed.run, decision.run)
        suspension = (SuspendRun(run),) if run_is_possible(decision, decision, observed) else ()
        return (*suspension, *_hub_marks(job))
    todo: list[Action] = [*_hub_marks(job)]
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


def _hub_marks(job: SupervisedJob) -> tuple[Action, ...]:
    """The action for what the job's object does not tell its hub yet.

    A job that the hub has moved here is unhealthy to it until the object says the checkpoint, known or not.
    """
    decision, present = job.decision, job.observed.hub
    if present is None:
        return ()
    given_up = decision.given_up_since is not None and not run_is_possible(decision, decision, job.observed)
    checkpoint = present.checkpoint if decision.resumes_from is None else str(decision.resumes_from)
    if not checkpoint and (given_up or present.moved):
        checkpoint = NO_CHECKPOINT
    marks = replace(present, given_up=given_up, checkpoint=checkpoint)
    return () if marks == present else (WriteHubMarks(marks),)


def _last_moments(s: Situation) -> tuple[Action, ...]:
    """The actions for excluded hosts whose deadline is near, once the launcher has confirmed the exclusions.

    Processes without a stream are told to leave a margin before it: they learn of it up to two seconds later. Pods that
    will be replaced are deleted at the last moment, as late as LEAVE: earlier, a replacement would get the same
    machine, and a group may be excluded only `margin_seconds` before its deadline.
    """
    decision, spec = s.previous, s.job.spec
    is_live = decision.phase in (Phase.RUNNING, Phase.SHRINKING) and not s.job.over
    if not is_live or s.job.observed.applied < decision.excluded_at:
        return ()
    leaving, removed = set[Host](), set[Host]()
    for host in decision.exclusions & s.noticed:
        deadline = deadline_of(s.facts.notices[host], s.policy)
        if spec.can(Capability.SIGNALS_PODS) and s.reached(deadline - s.policy.margin_seconds):
            leaving.add(host)
        if spec.can(Capability.REPLACES_HOSTS) and s.reached(deadline - s.policy.leave_margin_seconds):
            removed.add(host)
    todo = list[Action]()
    if leaving:
        todo.append(LeaveHosts(decision.run, frozenset(leaving)))
    if removed:
        todo.append(RemoveHosts(decision.run, frozenset(removed)))
    return tuple(todo)


def _numbered(decision: Decision, previous: Decision) -> Decision:
    """Sets the generation of a changed decision, and of its new exclusions, stop or checkpoint."""
    generation = previous.generation + 1
    decision = replace(decision, generation=generation)
    if decision.exclusions - previous.exclusions:
        decision = replace(decision, excluded_at=generation)
    if decision.stop is not None and previous.stop is None:
        decision = replace(decision, stop=replace(decision.stop, generation=generation))
    if decision.checkpoint is not None and decision.checkpoint != previous.checkpoint:
        decision = replace(decision, checkpoint=replace(decision.checkpoint, generation=generation))
    return decision


def _finished(s: Situation) -> Decision:
    """Handles the phases of a job that is over, or that somebody ends."""
    before, result = s.previous, s.job.observed.result
    phase = Phase.TIMED_OUT if before.phase is Phase.TIMED_OUT else Phase.FINISHED
    # A decided end has a reason that says more than its result.
    is_known = phase is Phase.TIMED_OUT or (before.phase is phase and result is Result.TERMINATED)
    reason = before.reason
    if not is_known and result is not None:
        reason = f"The job has ended: {result.value.replace('_', ' ')}."
    hosts = before.hosts if s.job.observed.running else frozenset()
    return Decision(generation=before.generation, phase=phase, reason=reason, run=before.run, hosts=hosts)


_RULES: Mapping[Phase, Callable[[Situation], Decision]] = {
    Phase.QUEUED: queued,
    Phase.WAITING: wait,
    Phase.SUSPENDED: wait,
    Phase.RUNNING: live,
    Phase.SHRINKING: live,
    Phase.RESUMING: live,
    Phase.STOPPING: stopping,
    Phase.TIMED_OUT: lambda s: s.previous,
    Phase.FINISHED: _finished,
}
