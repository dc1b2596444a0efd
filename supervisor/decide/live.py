"""The rules of the phases Running, Shrinking and Resuming, in which a job has hosts and continues or stops."""

import math
from collections.abc import Collection
from dataclasses import replace

from supervisor.decide.agreement import saved_together, seconds_to_leave
from supervisor.decide.grant import most_workers, takes_any_size, usable_workers
from supervisor.decide.policy import doubled
from supervisor.decide.reasons import DRILL, announced, be, count, following, minimum, named, requested, running, unused
from supervisor.decide.rendezvous import with_round
from supervisor.decide.situation import Situation
from supervisor.decide.stopping import rested, stop, stop_together, withdrawn_stop
from supervisor.decide.urgency import checkpoint_at, deadline_of
from supervisor.domain.agreement import MEMBERSHIP
from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, CheckpointRequest, Decision, Growth, Observed, Phase
from supervisor.domain.notice import NoticeClass

_STEPS_OF_MARGIN = 10
"""Steps between the exclusion and the first deadline: elastic Horovod reads the list of hosts when it commits."""


def live(s: Situation) -> Decision:
    """Handles the phases in which a job has hosts."""
    before, spec = s.previous, s.job.spec
    if spec.can(Capability.STARTS_RUNS) and before.phase is not Phase.RESUMING and not s.job.observed.running:
        return _left_to_operator(s, before)
    before = _cleared(s, withdrawn_stop(before))
    staying = before.hosts - before.exclusions - s.noticed
    why = _reason_to_stop(s, len(staying))
    if why is not None:
        return stop_together(s, why)
    staying -= s.without_member
    if not usable_workers(len(staying), spec):
        return _lost(s, before, len(staying))
    if before.below_min_since is not None:
        before = replace(before, below_min_since=None, reason=_running(s, before))
    if before.phase is Phase.RESUMING:
        return _resuming(s, before)
    decision = with_round(s, _sized(s, _restarted(s, before)))
    agreement = decision.agreement
    if s.facts.members and agreement is not None and agreement.purpose in MEMBERSHIP:
        return decision  # The ranks are on the way to another round, for which another agreement would have to wait.
    return saved_together(s, _with_checkpoint(s, decision))


def _reason_to_stop(s: Situation, left: int) -> str | None:
    """Why the run must stop; None if it may continue, with at most `left` hosts."""
    spec, observed, notices = s.job.spec, s.job.observed, s.facts.notices
    if observed.ending:
        return "The launcher was asked to end the job: stopping."
    if observed.request is not None:
        return requested(observed.request)
    if observed.queue:
        return observed.queue
    if spec.launcher_host is not None and spec.launcher_host in notices:
        host, notice = spec.launcher_host, notices[spec.launcher_host]
        if notice.drains:
            return f"The launcher's host {host} is drained by {notice.drained_by}: stopping."
        drill = DRILL if notice.simulated else ""
        return f"{drill}The launcher's host {host} will be reclaimed, says {notice.source}: stopping."
    if not s.noticed:
        return None
    if not usable_workers(left, spec):
        return f"{announced(s.noticed, notices)}; {count(left)} would remain ({minimum(spec)}): stopping."
    is_fixed = spec.can(Capability.FIXED_HOSTS)
    return f"{announced(s.noticed, notices)}; the run cannot go on without a host: stopping." if is_fixed else None


def _cleared(s: Situation, before: Decision) -> Decision:
    """Removes hosts that have left the list, and takes back exclusions whose notices were withdrawn.

    New hosts of a controller are the job's at once. If others have joined meanwhile, an excluded host above the maximum
    is released instead of taken back. A host whose pod is terminating stays excluded until it is gone. Hosts that the
    size of the run cannot include are excluded as well.
    """
    back = (before.exclusions & s.present) - s.unusable
    room = max(0, most_workers(s.job.spec) - len(s.present - s.unusable - back))
    makes_hosts = s.job.spec.can(Capability.MAKES_HOSTS)
    # A controller lists all hosts that it made.
    over = frozenset[Host]() if makes_hosts else back - s.facts.ranking.best(back, room)
    hosts = s.present - over
    surplus = _surplus(s, before, hosts)
    exclusions = (before.exclusions & s.unusable) | surplus
    workers, back = len(hosts - s.unusable - surplus), back - surplus
    new, lost = s.present - before.hosts - s.unusable - surplus, before.hosts - before.exclusions - s.present
    reason = before.reason
    if lost and makes_hosts:
        reason = f"{named(lost)} {be(lost)} gone; now {count(workers)}."
    if new:
        reason = f"{named(new)} joined; now {count(workers)}."
    if back and takes_any_size(s.job.spec):
        # Their notices have ended: withdrawn by the cloud, or a drain or drill that is over.
        verb = "has" if len(back) == 1 else "have"
        reason = following(before.reason, f"{named(back)} {verb} no notice any more; now {count(workers)}.")
    elif back:
        reason = following(before.reason, f"{named(back)} {be(back)} used again; now {count(workers)}.")
    cleared = replace(before, hosts=hosts, exclusions=exclusions, reason=reason)
    if surplus <= before.exclusions:
        return cleared
    reason = f"{unused(surplus, s.job.spec)} Continuing with {count(workers)}."
    return replace(cleared, phase=Phase.SHRINKING, reason=reason)


def _surplus(s: Situation, before: Decision, hosts: frozenset[Host]) -> frozenset[Host]:
    """The usable hosts that a run leaves out, because its size cannot include them.

    Those in use stay in use where possible, those without a notice first. While the launcher has not confirmed yet
    that hosts have left, none is taken back: in one change of the list, leaving and joining can block the launcher.
    Elastic agents of torchrun do not follow the list: their rounds have sizes of their own.
    """
    spec = s.job.spec
    if takes_any_size(spec) or s.facts.members or before.phase is Phase.RESUMING:
        return frozenset()
    used = (before.hosts - before.exclusions) & hosts
    others = hosts - used - s.unusable
    candidates = used if before.phase is Phase.SHRINKING else used | others
    # With too few for any size, the job waits for others or stops.
    size = usable_workers(len(candidates), spec) or len(candidates)
    first = sorted(s.facts.ranking.ordered(candidates), key=lambda host: (host not in used, host in s.noticed))
    return (used | others).difference(first[:size])


def _left_to_operator(s: Situation, before: Decision) -> Decision:
    """Waits for the controller to restart a run that ended by itself, in the same way as for the first run."""
    observed = s.job.observed
    if observed.exit_code == 0:
        return before  # The controller is about to report that the job has succeeded.
    reason = _retrying(observed)
    if observed.launcher_lost_since is not None:
        reason = f"The launcher of run {observed.run} is gone; its operator may start another."
    return Decision(
        generation=before.generation,
        phase=Phase.WAITING,
        reason=reason,
        run=max(before.run, observed.run),
        waiting_since=s.now,
        epochs=before.epochs,
        run_since=before.run_since,
        short_runs=before.short_runs,
        resumes_from=before.resumes_from,
    )


def _lost(s: Situation, before: Decision, left: int) -> Decision:
    """Handles workers that were lost without a notice. The job stops unless others join within a grace time."""
    since = before.below_min_since if before.below_min_since is not None else s.now
    verb = "remains" if left == 1 else "remain"
    reason = f"Hosts were lost without a notice; {count(left)} {verb} ({minimum(s.job.spec)})."
    if s.reached(since + s.policy.lost_grace_seconds):
        return rested(s, stop(s, reason), since)
    before = replace(before, below_min_since=since, window_until=None, reason=reason)
    return _grown(s, before) if before.phase is Phase.RUNNING else before


def _resuming(s: Situation, before: Decision) -> Decision:
    """Handles the phase Resuming: the run begins, or the supervisor gives up the resume and suspends the job.

    After a failed resume the job keeps its hosts until the launcher confirms that it waits. A failed probe does not
    lengthen the pause before a resume on known capacity, only the one before the next probe.
    """
    observed = s.job.observed
    if observed.running and observed.run >= before.run:
        return replace(
            before,
            phase=Phase.RUNNING,
            reason=following(before.reason, running(observed.run, len(before.hosts - before.exclusions))),
            run=observed.run,
            waiting_since=None,
            resume_until=None,
            failed_resumes=0,
            run_since=s.now,
        )
    if before.resume_until is None or not s.reached(before.resume_until):
        return before
    reason = f"Run {before.run} did not start in time; waiting before the next attempt."
    if before.probing:
        reason = f"No capacity appeared for run {before.run}; waiting before the next attempt."
    pause = doubled(s.policy.resume_backoff_seconds, 0 if before.probing else before.failed_resumes)
    return replace(
        before,
        phase=Phase.SUSPENDED,
        reason=following(before.reason, reason),
        resume_until=None,
        waiting_since=before.waiting_since if before.probing else s.now,
        failed_resumes=before.failed_resumes + 1,
        not_before=s.now + pause,
    )


def _restarted(s: Situation, before: Decision) -> Decision:
    """Takes over the next run that the launcher starts after a run failed by itself.

    A new run number of ours would bypass the launcher's back-off and its limit of restarts.
    """
    observed = s.job.observed
    if observed.run > before.run:
        reason = running(observed.run, len(before.hosts - before.exclusions))
        return replace(before, run=observed.run, reason=reason, growth=None, run_since=s.now)
    failed = observed.run == before.run and not observed.running and observed.exit_code not in (None, 0)
    return replace(before, reason=_retrying(observed)) if failed else before


def _sized(s: Situation, before: Decision) -> Decision:
    """Handles Running and Shrinking: collects a group, excludes it in one change, and grows again later."""
    pending = s.noticed - before.exclusions
    if pending:
        return _collected(s, before, pending)
    if before.window_until is not None:
        before = replace(before, window_until=None, reason=_running(s, before))
    if before.phase is Phase.SHRINKING:
        return _settled(s, before)
    if s.job.spec.can(Capability.GROWS):
        return _grown_by_operator(s, before)
    return before if s.job.spec.can(Capability.MAKES_HOSTS) else _grown(s, before)


def _settled(s: Situation, before: Decision) -> Decision:
    """Lets the run continue once the launcher has confirmed an order with exactly these exclusions."""
    is_in_place = s.stored.exclusions == before.exclusions and s.job.observed.applied >= s.stored.generation
    if before.phase is not Phase.SHRINKING or not is_in_place:
        return before
    return replace(before, phase=Phase.RUNNING, reason=_running(s, before))


def _running(s: Situation, decision: Decision) -> str:
    """Returns the reason of a run that goes on."""
    reason = running(decision.run, len(decision.hosts - decision.exclusions))
    surplus = decision.exclusions - s.unusable
    if surplus:
        reason = f"{reason} {unused(surplus, s.job.spec)}"
    drilled = all(s.facts.notices[host].simulated for host in decision.exclusions & s.noticed)
    return following(decision.reason, reason) if drilled else reason


def _collected(s: Situation, before: Decision, pending: frozenset[Host]) -> Decision:
    """Collects the noticed hosts of a group, and excludes all of them in one change at the end of its window."""
    until = _window_end(s, pending)
    if not s.reached(until):
        return _training_on(s, before, pending, until)
    remaining = before.hosts - before.exclusions - s.noticed
    size = len(remaining) if s.facts.members else usable_workers(len(remaining), s.job.spec)
    kept = s.facts.ranking.best(remaining, size)
    continuing = f"continuing with {count(len(kept))} ({minimum(s.job.spec)})."
    reason = f"{announced(pending, s.facts.notices)}; {continuing}"
    if surplus := remaining - kept:
        reason = f"{reason} {unused(surplus, s.job.spec)}"
    return replace(
        before,
        phase=Phase.SHRINKING,
        exclusions=before.hosts - kept,
        window_until=None,
        reason=reason,
    )


def _training_on(s: Situation, before: Decision, pending: frozenset[Host], until: float) -> Decision:
    """Waits for the end of a group's window. A round may take others in meanwhile, or together with the leave."""
    waiting, lists_hosts = _settled(s, before), s.job.spec.can(Capability.MAKES_HOSTS)
    if s.facts.members and waiting.phase is Phase.RUNNING and not lists_hosts:
        waiting = _grown(s, waiting)
    if waiting.phase is before.phase and waiting.hosts == before.hosts and waiting.window_until == until:
        # Otherwise each notice of a group of twenty would cost a write without new information.
        return replace(before, capacity_since=waiting.capacity_since)
    reason = "training on all hosts until shortly before."
    if until <= s.now + s.policy.window_seconds:
        reason = "waiting a moment for further notices of the same group."
    reason = f"{announced(pending, s.facts.notices)}; {reason}"
    if waiting.hosts != before.hosts:
        reason = f"{reason} {waiting.reason}"
    return replace(waiting, window_until=until, reason=reason)


def _window_end(s: Situation, pending: Collection[Host]) -> float:
    """Returns when the job excludes all pending hosts, in one change (Unix seconds).

    If it is known how long the run takes to go on without them, that is just before the first of them goes: until then
    all of them train, others can join the group, and notices can be withdrawn. Otherwise it is as soon as the group is
    complete: a window after its first notice, or earlier if its first deadline requires that.
    """
    policy, ranks, notices = s.policy, s.facts.ranks, [s.facts.notices[host] for host in pending]
    # A supervisor that could not receive notices until just now waits for a whole window, and deadlines before that do
    # not shorten it.
    complete = max(s.facts.since, min(notice.first_seen for notice in notices)) + policy.window_seconds
    deadlines = [deadline_of(notice, policy) for notice in notices]
    # As the store keeps it: a more precise instant would be a new decision in every pass.
    complete = round(min([complete, *(at - policy.margin_seconds for at in deadlines if at > s.facts.since)]), 6)
    known = [notice.deadline for notice in notices if notice.deadline is not None]
    # A pod that was asked to terminate may go at any time: its processes have received SIGTERM.
    may_go_at_once = len(known) < len(notices) or not s.facts.terminating.isdisjoint(pending)
    if not policy.just_in_time or may_go_at_once:
        return complete
    step = ranks.slowest_step
    to_leave = None if step is None else _STEPS_OF_MARGIN * step
    # Members of a torchrun job read no list: their ranks agree on a step, and some save after it.
    needed = seconds_to_leave(ranks) if s.facts.members else to_leave
    last, decided = min(known) - policy.margin_seconds - (needed or 0.0), s.previous.window_until
    if decided is not None and complete < decided <= last:
        # A new end would cost a write. After a restart, the processes first have to say again how long a step takes.
        return decided
    if needed is None:
        return complete
    # A step earlier: the end remains the same if later steps take a little longer.
    return max(complete, round(last - (step or 0.0), 6))


def _grown(s: Situation, before: Decision) -> Decision:
    """Adds granted hosts after a delay, so that they join together. Every change of the list costs a re-rendezvous."""
    joining = s.facts.granted - before.hosts
    if not joining:
        return replace(before, capacity_since=None)
    since = before.capacity_since if before.capacity_since is not None else s.now
    if not s.reached(since + s.policy.resume_delay_seconds):
        return replace(before, capacity_since=since)
    hosts = before.hosts | joining
    reason = f"{named(joining)} joined; now {count(len(hosts - before.exclusions))}."
    return replace(before, hosts=hosts, capacity_since=None, reason=reason)


def _retrying(observed: Observed) -> str:
    """Returns the reason of a run that failed by itself, without a STOP."""
    failed = "is not running" if observed.exit_code is None else f"failed with code {observed.exit_code}"
    return f"Run {observed.run} {failed}; its launcher starts it again or gives up."


def _grown_by_operator(s: Situation, before: Decision) -> Decision:
    """Asks the controller for more workers, for a run that was resumed smaller and loses no hosts.

    They are the job's as soon as the controller lists them. An attempt ends when they are listed or when its time is
    over, so nothing depends on an answer of the controller.
    """
    policy, growth, workers, requested_workers = (
        s.policy,
        before.growth,
        len(before.hosts),
        s.job.spec.requested_workers,
    )
    if growth is not None and growth.workers:
        if workers >= growth.workers:
            reason = f"Continuing with {workers} of {requested_workers} requested hosts."
            return replace(before, growth=None, reason=reason)
        if not s.reached(growth.until):
            return before
        failed = growth.failed + 1
        pause = replace(growth, workers=0, until=s.now + doubled(policy.growth_delay_seconds, failed), failed=failed)
        reason = f"The job did not grow to {count(growth.workers)} in time"
        reason = f"{reason}; continuing with {workers}, and trying again later."
        return replace(before, growth=pause, reason=reason)
    if not policy.growth_delay_seconds or not s.facts.more or before.exclusions & s.unusable:
        return replace(before, capacity_since=None)
    since = s.now if before.capacity_since is None else before.capacity_since
    # Room has to last, and the pause after the last attempt has to be over.
    if not s.reached(max(since + policy.growth_delay_seconds, 0.0 if growth is None else growth.until)):
        return replace(before, capacity_since=since)
    wanted = Growth(
        workers=workers + s.facts.more,
        number=s.stored.generation + 1,
        until=s.now + policy.resume_timeout_seconds,
        failed=0 if growth is None else growth.failed,
    )
    reason = f"There is room again: asking for {wanted.workers} of {requested_workers} requested hosts."
    return replace(before, growth=wanted, capacity_since=None, reason=reason)


def _with_checkpoint(s: Situation, decision: Decision) -> Decision:
    """Adds a request for a checkpoint to the decision when a notice on a host of the run first needs one.

    A hint asks for one, and so does a scheduled notice before it is acted on. A request covers every notice up to a
    pause after it, and so does not have to remember them: a group of hints costs one request, and no write for each.
    """
    if decision.phase is not Phase.RUNNING or not s.job.observed.running or not s.facts.ahead:
        return decision
    if decision.window_until is not None and s.reached(decision.window_until - s.policy.window_seconds):
        return decision  # The hosts change within a moment.
    covered = -math.inf
    if decision.checkpoint is not None:
        covered = decision.checkpoint.since + s.policy.checkpoint_pause_seconds
    hosts, launcher = s.present - decision.exclusions, s.job.spec.launcher_host
    asking = {}
    for host in sorted(hosts if launcher is None else hosts | {launcher}):
        for notice in s.facts.ahead.get(host, ()):
            at = checkpoint_at(notice, s.policy)
            if covered < at and s.reached(at):
                asking[host] = notice
    if not asking:
        return decision
    # Rounded to the store's precision, so that the stored request still covers the notice that it was made for.
    request = CheckpointRequest(run=decision.run, generation=s.stored.generation, since=round(s.now, 6))
    # The run continues; its hosts are not gone yet, and perhaps never will be.
    sources = " and ".join(sorted({notice.source for notice in asking.values()}))
    may = "may" if any(notice.notice_class is NoticeClass.HINT for notice in asking.values()) else "is to"
    later = f"{may} be reclaimed later, according to {sources}"
    return replace(decision, checkpoint=request, reason=f"{named(asking)} {later}: saving a checkpoint and continuing.")
