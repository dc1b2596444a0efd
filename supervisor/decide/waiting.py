"""The rules of the phases Waiting, Suspended and Queued, in which a job waits for its last run to end, or for capacity.

A job that a person has suspended waits for that person alone: it has no `waiting_since`, so no time limit runs. One
that a queue holds back waits for the queue, which also starts it.

Some capacity, such as autoscaled pools, only appears for pending pods. So a job is also resumed without known room from
time to time, to probe for it: its pods wait for a limited time, and it is suspended again if no capacity appears.

A job that a hub can move to another cluster does not time out. It is suspended, and given up once none of its pods is
left here: then the hub deletes it, and makes it anew elsewhere.
"""

from dataclasses import replace

from supervisor.decide.grant import least_workers
from supervisor.decide.policy import MAX_DOUBLINGS, Policy
from supervisor.decide.reasons import FREED, HELD_UP, NO_ROOM, STARTING, count, following, requested, running, waiting
from supervisor.decide.situation import Situation
from supervisor.decide.stopping import rested
from supervisor.domain.job import WAITS, Capability, Decision, Observed, Phase, RequestKind, UserRequest

_LEFT_HERE_SECONDS = 30.0
"""The pause before a job that was given up may be resumed here after all. The hub may have decided to move it just
before it saw that the job is not given up any more, and would delete a run that has only begun."""


def wait(s: Situation) -> Decision:
    """Handles the phases Waiting and Suspended."""
    before, spec, observed = s.previous, s.job.spec, s.job.observed
    starts_itself = spec.can(Capability.STARTS_RUNS) and before.phase is Phase.WAITING
    if starts_itself and observed.running:
        # The controller has started a run by itself.
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
            held_up=False,
            request=None,
        )
    if run_is_possible(before, s.stored, observed):
        return before
    if observed.request is not None:
        return _held(s, before, observed.request)
    if before.given_up_since is not None:
        return _given_up(s, before, before.given_up_since)
    if starts_itself and observed.launcher_lost_since is not None:
        # The controller may still act. If it does not in time, only a suspension can start the job again.
        if not s.reached(observed.launcher_lost_since + s.policy.launcher_grace_seconds):
            return before
        run = max(before.run, observed.run)
        reason = (
            f"The launcher of run {run} is gone and its operator started no other: suspending and resuming the job."
        )
        lost = replace(before, phase=Phase.SUSPENDED, reason=reason, hosts=observed.hosts, waiting_since=s.now)
        return rested(s, lost, observed.launcher_lost_since)
    since = before.waiting_since if before.waiting_since is not None else s.now
    if before.waiting_since is None:
        is_freed = before.phase is Phase.SUSPENDED
        before = replace(before, waiting_since=since, reason=FREED if is_freed else before.reason, request=None)
    before = replace(before, hosts=frozenset(), exclusions=frozenset(), stop=None, agreement=None)
    if spec.max_wait_seconds and s.reached(since + spec.max_wait_seconds):
        return _waited_too_long(s, replace(before, capacity_since=None, held_up=False, request=None))
    # A job that is being ended only waits for the final report of its launcher.
    if starts_itself or observed.ending:
        return replace(before, capacity_since=None)
    return _started(s, before)


def _waited_too_long(s: Situation, before: Decision) -> Decision:
    """Ends a job that has waited for its maximum time, or gives it up to its hub.

    Its pods, which may still wait here, must be gone before the hub makes others elsewhere: their controller would
    start a second run of the job as soon as there is room.
    """
    spec, observed = s.job.spec, s.job.observed
    limit = f"the maximum waiting time of {spec.max_wait_seconds:g} s"
    why = f"No capacity for {count(least_workers(spec, to_start=True))} within {limit}"
    if not spec.can(Capability.MOVES):
        return replace(before, phase=Phase.TIMED_OUT, reason=f"{why}.")
    if before.phase is Phase.WAITING and spec.can(Capability.STARTS_RUNS):
        reason, run = f"{why}: suspending the job, to have it moved to another cluster.", max(before.run, observed.run)
        return replace(before, phase=Phase.SUSPENDED, reason=reason, run=run, hosts=observed.hosts)
    reason = f"{why}: its hub is to move the job to another cluster."
    return replace(before, phase=Phase.SUSPENDED, given_up_since=s.now, reason=reason)


def _given_up(s: Situation, before: Decision, since: float) -> Decision:
    """Waits for the hub to delete the job here. If it does not, no other cluster has room, and the wait begins anew."""
    if not s.reached(since + s.policy.move_timeout_seconds):
        return before
    limit = f"within {s.policy.move_timeout_seconds:g} s"
    reason = f"The hub has not moved the job to another cluster {limit}; waiting for capacity in this one again."
    pause = s.now + _LEFT_HERE_SECONDS
    return replace(before, given_up_since=None, waiting_since=s.now, not_before=pause, reason=reason)


def run_is_possible(decision: Decision, ordered: Decision, observed: Observed) -> bool:
    """Whether a waiting job has a run, or may still start one; `ordered` is the decision its launcher received last.

    An ordered run, or one that the launcher restarts by itself, may be starting without being reported yet. Only a
    confirmed order to wait excludes that.
    """
    confirmed = ordered.phase is decision.phase and observed.applied >= ordered.generation
    return observed.running or (bool(decision.hosts) and not confirmed)


def _held(s: Situation, before: Decision, request: UserRequest) -> Decision:
    """Suspends the job until its request is withdrawn, or ends the job.

    A first run that is starting ends before that.
    """
    # The reason of a run that was stopped for this request also tells how it stopped.
    is_told = before.request is not None and replace(before.request, at=request.at) == request
    if not is_told:
        before = replace(before, reason=requested(request), request=request, held_up=False)
    if s.job.spec.can(Capability.STARTS_RUNS) and before.phase is Phase.WAITING:
        run, hosts = max(before.run, s.job.observed.run), s.job.observed.hosts
        return replace(before, phase=Phase.SUSPENDED, run=run, hosts=hosts, waiting_since=None)
    return replace(
        before,
        phase=Phase.FINISHED if request.kind is RequestKind.STOP else Phase.SUSPENDED,
        hosts=frozenset(),
        exclusions=frozenset(),
        stop=None,
        agreement=None,
        waiting_since=None,
        capacity_since=None,
        not_before=None,
        given_up_since=None,
    )


def _started(s: Situation, before: Decision) -> Decision:
    """Starts a run on the granted hosts as soon as it is due.

    A start at full size is due at once, another one after a delay in which more hosts may arrive. On a cluster there is
    always a delay: pods that are already pending come first, and the scheduler needs a moment. A job that only probes
    keeps its place in the queue and its waiting time.
    """
    facts, spec, is_first = s.facts, s.job.spec, before.phase is Phase.WAITING
    # The reason of the suspension stays unless something else prevents a resume.
    if facts.held_up or before.held_up:
        reason = following(before.reason, HELD_UP if facts.held_up else NO_ROOM)
        before = replace(before, reason=reason, held_up=facts.held_up, request=None)
    # As long as the job's object says that it is given up, its hub may delete it at any moment.
    is_offered = s.job.observed.hub is not None and s.job.observed.hub.given_up
    if not facts.granted or spec.launcher_host in facts.notices or is_offered:
        return replace(before, capacity_since=None)
    since = before.capacity_since if before.capacity_since is not None else s.now
    if facts.probe:
        before, at = replace(before, capacity_since=None), probe_at(before, s.policy)
    else:
        before = replace(before, capacity_since=since)
        at_once = len(facts.granted) >= spec.requested_workers and not spec.can(Capability.MAKES_HOSTS)
        delay = 0.0 if at_once else s.policy.resume_delay_seconds
        at = max(since + delay, before.not_before or s.now)
    if not s.reached(at):
        return before
    run, workers = max(s.job.observed.run, before.run) + 1, len(facts.granted)
    start = STARTING if is_first else "Resuming from the checkpoint as run "
    reason = f"{start}{run} on {workers} of {spec.requested_workers} requested hosts."
    if facts.probe:
        without = "without known room: some capacity only appears for pending pods."
        reason = f"Trying run {run} on {count(workers)} {without}"
    return replace(
        before,
        phase=Phase.RUNNING if is_first else Phase.RESUMING,
        reason=reason if is_first else following(before.reason, reason),
        run=run,
        hosts=facts.granted,
        waiting_since=before.waiting_since if facts.probe else None,
        capacity_since=None,
        not_before=None,
        resume_until=None if is_first else s.now + s.policy.resume_timeout_seconds,
        run_since=s.now,
        held_up=False,
        request=None,
    )


def probe_at(decision: Decision, policy: Policy) -> float:
    """When a waiting job may probe: one pause after it began to wait, then after two pauses, four, and so on.

    After 32 pauses, every 16 pauses: a job that has waited for days should not wait for more days.
    """
    doublings = min(decision.failed_resumes, MAX_DOUBLINGS)
    pauses = (1 << doublings) + 16 * (decision.failed_resumes - doublings)
    return max((decision.waiting_since or 0.0) + pauses * policy.probe_seconds, decision.not_before or 0.0)


def enters_queue(s: Situation) -> bool:
    """Whether the queue of a job without a run decides when it starts. A person's request takes precedence.

    A queue may also end a run before it can be told to save: its processes then have the grace of their pods.
    """
    observed, phase = s.job.observed, s.previous.phase
    is_live = phase in (Phase.RESUMING, Phase.RUNNING, Phase.SHRINKING)
    has_no_run = phase in WAITS or (is_live and not observed.running)
    return bool(observed.queue) and has_no_run and observed.request is None


def queued(s: Situation) -> Decision:
    """Handles the phase Queued: the job waits for its queue, and then for its controller as before its first run."""
    before, observed = s.previous, s.job.observed
    decision = Decision(
        generation=before.generation,
        phase=Phase.QUEUED,
        reason=observed.queue,
        run=max(before.run, observed.run),
        epochs=before.epochs,
        short_runs=before.short_runs,
        resumes_from=before.resumes_from,
    )
    if observed.queue and observed.request is None:
        return decision
    admitted = replace(decision, phase=Phase.WAITING, reason=waiting(s.job.spec), waiting_since=s.now)
    return admitted if observed.request is None else wait(replace(s, job=replace(s.job, decision=admitted)))
