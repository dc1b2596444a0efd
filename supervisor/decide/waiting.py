"""The phases Waiting and Suspended: the job waits for its last run to end, for capacity, or for its time limit.

A job that a person has suspended waits for that person alone: it has no `waiting_since`, so no time limit runs.
"""

from dataclasses import replace

from supervisor.decide.grant import least_to_start
from supervisor.decide.policy import Policy
from supervisor.decide.reasons import (
    following,
    freed,
    held_up,
    launcher_lost,
    no_room,
    probing,
    requested,
    running,
    started,
    timed_out,
    waiting,
)
from supervisor.decide.situation import Situation
from supervisor.decide.stopping import rested
from supervisor.domain.job import Capability, Decision, Observed, Phase, RequestKind, SupervisedJob, UserRequest

WAITS = (Phase.WAITING, Phase.SUSPENDED)


def run_is_possible(decision: Decision, ordered: Decision, observed: Observed) -> bool:
    """Whether a waiting job has a run, or may still start one; `ordered` is the decision its launcher received last.

    An ordered run, or one that the launcher restarts by itself, may be starting without being reported yet. Only a
    confirmed order to wait excludes that.
    """
    confirmed = ordered.phase is decision.phase and observed.applied >= ordered.generation
    return observed.running or (bool(decision.hosts) and not confirmed)


def wait(s: Situation) -> Decision:
    """Handles the phases Waiting and Suspended."""
    before, spec = s.previous, s.job.spec
    starts_itself = spec.can(Capability.STARTS_RUNS) and before.phase is Phase.WAITING
    if starts_itself and s.job.observed.running:
        return _taken_over(s, before)
    if run_is_possible(before, s.stored, s.job.observed):
        return before
    request = s.job.observed.request
    if request is not None:
        return _held(s, before, request)
    if starts_itself and s.job.observed.launcher_lost_since is not None:
        return _without_launcher(s, before, s.job.observed.launcher_lost_since)
    since = before.waiting_since if before.waiting_since is not None else s.now
    reason = freed() if before.waiting_since is None and before.phase is Phase.SUSPENDED else before.reason
    before = replace(before, waiting_since=since, reason=reason)
    before = replace(before, hosts=frozenset(), exclusions=frozenset(), stop=None, agreement=None)
    if spec.max_wait_seconds and s.now >= since + spec.max_wait_seconds:
        return replace(before, phase=Phase.TIMED_OUT, reason=timed_out(spec), capacity_since=None)
    # A job that is being ended only waits for the final report of its launcher.
    is_started_here = not (starts_itself or s.job.observed.ending)
    return _granted(s, before) if is_started_here else replace(before, capacity_since=None)


def _held(s: Situation, before: Decision, request: UserRequest) -> Decision:
    """Suspends the job until the request is taken back, or ends it; a first run that is being started ends first."""
    says = requested(request)
    reason = before.reason if before.reason.startswith(says) else says
    if s.job.spec.can(Capability.STARTS_RUNS) and before.phase is Phase.WAITING:
        run = max(before.run, s.job.observed.run)
        hosts = s.job.observed.hosts
        return replace(before, phase=Phase.SUSPENDED, reason=reason, run=run, hosts=hosts, waiting_since=None)
    return replace(
        before,
        phase=Phase.FINISHED if request.kind is RequestKind.STOP else Phase.SUSPENDED,
        reason=reason,
        hosts=frozenset(),
        exclusions=frozenset(),
        stop=None,
        agreement=None,
        waiting_since=None,
        capacity_since=None,
        not_before=None,
    )


def _without_launcher(s: Situation, before: Decision, lost_since: float) -> Decision:
    """The controller may still act. If it does not in time, only a suspension can start the job again."""
    if s.now < lost_since + s.policy.launcher_grace_seconds:
        return before
    run = max(before.run, s.job.observed.run)
    hosts = s.job.observed.hosts
    lost = replace(before, phase=Phase.SUSPENDED, reason=launcher_lost(run), hosts=hosts, waiting_since=s.now)
    return rested(s, lost, lost_since)


def _granted(s: Situation, before: Decision) -> Decision:
    """Starts a run on the granted hosts as soon as it is due."""
    before = replace(before, reason=_obstacle(s, before))
    if not s.facts.granted or s.job.spec.launcher_host in s.facts.notices:
        return replace(before, capacity_since=None)
    capacity_since = before.capacity_since if before.capacity_since is not None else s.now
    before = replace(before, capacity_since=None if s.facts.probe else capacity_since)
    if s.now < start_at(s, before):
        return before
    return _started(s, before)


def start_at(s: Situation, decision: Decision) -> float:
    """When a start on the granted hosts is due: at once at full size, else after a delay in which more may arrive.

    On a cluster there is always a delay: pods that are already pending come first, and the scheduler needs a moment.
    """
    if s.facts.probe:
        return probe_at(decision, s.policy)
    at_once = len(s.facts.granted) >= s.job.spec.requested_workers and not s.job.spec.can(Capability.MAKES_HOSTS)
    delay = 0.0 if at_once else s.policy.resume_delay_seconds
    return max((decision.capacity_since or s.now) + delay, decision.not_before or s.now)


def _taken_over(s: Situation, before: Decision) -> Decision:
    """Takes over a run that the controller has started by itself."""
    observed = s.job.observed
    return replace(
        before,
        phase=Phase.RUNNING,
        reason=running(observed.run, len(observed.hosts)),
        run=observed.run,
        hosts=observed.hosts,
        waiting_since=None,
        capacity_since=None,
        not_before=None,
        run_since=s.now,
    )


def _obstacle(s: Situation, before: Decision) -> str:
    """The reason of the suspension stays unless something else prevents a resume."""
    if s.facts.held_up:
        return following(before.reason, held_up())
    is_past = before.reason in (held_up(), following(before.reason, held_up()))
    return following(before.reason, no_room()) if is_past else before.reason


def _started(s: Situation, before: Decision) -> Decision:
    """Starts a run; a job that only probes keeps its place in the queue and its waiting time."""
    first, workers = before.phase is Phase.WAITING, len(s.facts.granted)
    run = max(s.job.observed.run, before.run) + 1
    starts = probing(run, workers) if s.facts.probe else started(run, workers, s.job.spec, first=first)
    why = starts if first else following(before.reason, starts)
    return replace(
        before,
        phase=Phase.RUNNING if first else Phase.RESUMING,
        reason=why,
        run=run,
        hosts=s.facts.granted,
        waiting_since=before.waiting_since if s.facts.probe else None,
        capacity_since=None,
        not_before=None,
        resume_until=None if first else s.now + s.policy.resume_timeout_seconds,
        run_since=s.now,
    )


_WAITING = (Phase.WAITING, Phase.SUSPENDED)
_WITH_A_RUN = (Phase.RESUMING, Phase.RUNNING, Phase.SHRINKING)


def enters_queue(s: Situation) -> bool:
    """Whether a job without a run is its queue's; what a person asks of the job counts more.

    A queue may also end a run before it can be told to save: its processes then have the grace of their pods.
    """
    observed, phase = s.job.observed, s.previous.phase
    has_no_run = phase in _WAITING or (phase in _WITH_A_RUN and not observed.running)
    return bool(observed.queue) and has_no_run and observed.request is None


def queued(s: Situation) -> Decision:
    """Handles the phase Queued: the job waits for its queue, and then for its controller as before its first run."""
    before, observed = s.previous, s.job.observed
    run = max(before.run, observed.run)
    decision = Decision(generation=before.generation, phase=Phase.QUEUED, reason=observed.queue, run=run)
    decision = replace(decision, epochs=before.epochs, short_runs=before.short_runs)
    if observed.queue and observed.request is None:
        return decision
    admitted = replace(decision, phase=Phase.WAITING, reason=waiting(s.job.spec), waiting_since=s.now)
    return admitted if observed.request is None else wait(replace(s, job=replace(s.job, decision=admitted)))


_MAX_DOUBLINGS = 5


def probe_at(decision: Decision, policy: Policy) -> float:
    """When a waiting job may probe: after the pause since it waits, after two pauses, four, and so on.

    After 32 pauses, every 16 pauses: a job that has waited for days should not wait for more days.
    """
    doublings = min(decision.failed_resumes, _MAX_DOUBLINGS)
    pauses = (1 << doublings) + 16 * (decision.failed_resumes - doublings)
    return max((decision.waiting_since or 0.0) + pauses * policy.probe_seconds, decision.not_before or 0.0)


def probe_size(job: SupervisedJob) -> int:
    """Alternates between the requested and the minimum size, as only a part of the capacity may appear."""
    return least_to_start(job.spec) if job.decision.failed_resumes % 2 else job.spec.requested_workers
