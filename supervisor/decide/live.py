"""The phases Running, Shrinking and Resuming: the job continues with its hosts, with fewer or with more, or stops."""

from dataclasses import replace

from supervisor.decide.checkpoint import with_checkpoint
from supervisor.decide.growth import grown_by_operator
from supervisor.decide.reasons import (
    below_minimum,
    collecting,
    ending,
    fixed_hosts,
    following,
    gone,
    joined,
    launcher_missing,
    launcher_noticed,
    left_unused,
    lost_hosts,
    probe_failed,
    requested,
    resume_failed,
    retrying,
    returned,
    running,
    shrinking,
    unused,
    using,
    withdrawn,
)
from supervisor.decide.rendezvous import changes_members, with_round
from supervisor.decide.situation import Situation
from supervisor.decide.size import most_workers, takes_any_size, usable_workers
from supervisor.decide.stopping import MAX_BACKOFF_DOUBLINGS, rested, stop
from supervisor.decide.together import saved_together, stop_together, withdrawn_stop
from supervisor.decide.window import window_end
from supervisor.domain.capability import Capability
from supervisor.domain.ids import Host
from supervisor.domain.job import Decision, Phase


def live(s: Situation) -> Decision:
    """Handles the phases in which a job has hosts."""
    before, spec = s.previous, s.job.spec
    if spec.can(Capability.STARTS_RUNS) and before.phase is not Phase.RESUMING and not s.job.observed.running:
        return _left_to_operator(s, before)
    before = _cleared(s, withdrawn_stop(before))
    left = len(before.hosts - before.exclusions - s.noticed)
    why = _reason_to_stop(s, left)
    if why is not None:
        return stop_together(s, why)
    left -= len((before.hosts - before.exclusions - s.noticed) & s.without_member)
    if not usable_workers(left, spec):
        return _lost(s, before, left)
    if before.below_min_since is not None:
        before = replace(before, below_min_since=None, reason=_running(s, before))
    if before.phase is Phase.RESUMING:
        return _resuming(s, before)
    decision = with_round(s, _sized(s, _restarted(s, before)))
    return decision if changes_members(s, decision) else saved_together(s, with_checkpoint(s, decision))


def _reason_to_stop(s: Situation, left: int) -> str | None:
    """Why the run must stop; None if it may continue, with at most `left` hosts."""
    spec, notices = s.job.spec, s.facts.notices
    if s.job.observed.ending:
        return ending()
    if s.job.observed.request is not None:
        return requested(s.job.observed.request)
    if s.job.observed.queue:
        return s.job.observed.queue
    if spec.launcher_host is not None and spec.launcher_host in notices:
        return launcher_noticed(spec.launcher_host, notices[spec.launcher_host])
    return _reason_to_leave(s, left) if s.noticed else None


def _reason_to_leave(s: Situation, left: int) -> str | None:
    """Why the run cannot go on without its noticed hosts; None if it can."""
    spec, notices = s.job.spec, s.facts.notices
    if not usable_workers(left, spec):
        return below_minimum(s.noticed, notices, left, spec)
    return fixed_hosts(s.noticed, notices) if spec.can(Capability.FIXED_HOSTS) else None


def _cleared(s: Situation, before: Decision) -> Decision:
    """Removes hosts that left the list, and takes exclusions back whose notices were withdrawn.

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
    reason = gone(lost, workers) if lost and makes_hosts else before.reason
    reason = joined(new, workers) if new else reason
    if back:
        again = withdrawn(back, workers) if takes_any_size(s.job.spec) else returned(back, workers)
        reason = following(before.reason, again)
    cleared = replace(before, hosts=hosts, exclusions=exclusions, reason=reason)
    if surplus <= before.exclusions:
        return cleared
    return replace(cleared, phase=Phase.SHRINKING, reason=left_unused(surplus, workers, s.job.spec))


def _surplus(s: Situation, before: Decision, hosts: frozenset[Host]) -> frozenset[Host]:
    """The hosts that a run leaves out although they could be used, as its size cannot include them.

    Those in use stay in use where possible, those without a notice first. While the launcher has not confirmed yet
    that hosts have left, none is taken back: in one change of the list, leaving and joining can block the launcher.
    Elastic agents of torchrun do not follow the list: their rounds have sizes of their own.
    """
    spec = s.job.spec
    if takes_any_size(spec) or s.facts.members or before.phase is Phase.RESUMING:
        return frozenset()
    used = (before.hosts - before.exclusions) & hosts
    unused = hosts - used - s.unusable
    candidates = used if before.phase is Phase.SHRINKING else used | unused
    # With too few for any size, the job waits for others or stops.
    size = usable_workers(len(candidates), spec) or len(candidates)
    first = sorted(s.facts.ranking.ordered(candidates), key=lambda host: (host not in used, host in s.noticed))
    return (used | unused).difference(first[:size])


def _left_to_operator(s: Situation, before: Decision) -> Decision:
    """Waits for the controller to restart a run that ended by itself, as for the first run."""
    observed = s.job.observed
    if observed.exit_code == 0:
        return before  # The controller is about to report that the job has succeeded.
    lost = observed.launcher_lost_since is not None
    return Decision(
        generation=before.generation,
        phase=Phase.WAITING,
        reason=launcher_missing(observed.run) if lost else retrying(observed),
        run=max(before.run, observed.run),
        waiting_since=s.now,
        epochs=before.epochs,
        run_since=before.run_since,
        short_runs=before.short_runs,
    )


def _lost(s: Situation, before: Decision, live: int) -> Decision:
    """Handles workers that were lost without a notice: after a grace time for others to join, the job stops."""
    since = before.below_min_since if before.below_min_since is not None else s.now
    reason = lost_hosts(live, s.job.spec)
    if s.now >= since + s.policy.lost_grace_seconds:
        return rested(s, stop(s, reason), since)
    before = replace(before, below_min_since=since, window_until=None, reason=reason)
    return _grown(s, before) if before.phase is Phase.RUNNING else before


def _resuming(s: Situation, before: Decision) -> Decision:
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
    if before.resume_until is not None and s.now >= before.resume_until:
        return _resume_failed(s, before)
    return before


def _resume_failed(s: Situation, before: Decision) -> Decision:
    """Suspends a job whose resume failed; it keeps its hosts until the launcher confirms that it waits.

    A failed probe does not lengthen the pause before a resume on known capacity, only the one before the next probe.
    """
    doublings = 0 if before.probing else min(before.failed_resumes, MAX_BACKOFF_DOUBLINGS)
    return replace(
        before,
        phase=Phase.SUSPENDED,
        reason=following(before.reason, probe_failed(before.run) if before.probing else resume_failed(before.run)),
        resume_until=None,
        waiting_since=before.waiting_since if before.probing else s.now,
        failed_resumes=before.failed_resumes + 1,
        not_before=s.now + s.policy.resume_backoff_seconds * 2**doublings,
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
    if failed:
        return replace(before, reason=retrying(observed))
    return before


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
        return grown_by_operator(s, before)
    return before if s.job.spec.can(Capability.MAKES_HOSTS) else _grown(s, before)


def _settled(s: Situation, before: Decision) -> Decision:
    """The run continues once the launcher has confirmed an order with exactly these exclusions."""
    is_in_place = s.stored.exclusions == before.exclusions and s.job.observed.applied >= s.stored.generation
    if before.phase is not Phase.SHRINKING or not is_in_place:
        return before
    return replace(before, phase=Phase.RUNNING, reason=_running(s, before))


def _running(s: Situation, decision: Decision) -> str:
    says = running(decision.run, len(decision.hosts - decision.exclusions))
    surplus = decision.exclusions - s.unusable
    says = f"{says} {unused(surplus, s.job.spec)}" if surplus else says
    drilled = all(s.facts.notices[host].simulated for host in decision.exclusions & s.noticed)
    return following(decision.reason, says) if drilled else says


def _collected(s: Situation, before: Decision, pending: frozenset[Host]) -> Decision:
    until = window_end(s, pending)
    if s.now < until:
        waiting = _settled(s, before)
        if waiting.phase is before.phase and before.window_until == until:
            return before  # Otherwise each notice of a group of twenty would cost a write without new information.
        reason = collecting if until <= s.now + s.policy.window_seconds else using
        return replace(waiting, window_until=until, reason=reason(pending, s.facts.notices))
    remaining = before.hosts - before.exclusions - s.noticed
    size = len(remaining) if s.facts.members else usable_workers(len(remaining), s.job.spec)
    kept = s.facts.ranking.best(remaining, size)
    return replace(
        before,
        phase=Phase.SHRINKING,
        exclusions=before.hosts - kept,
        window_until=None,
        reason=shrinking(pending, s.facts.notices, len(kept), s.job.spec, remaining - kept),
    )


def _grown(s: Situation, before: Decision) -> Decision:
    """Adds granted hosts after a delay, so that they join together: every change of the list costs a re-rendezvous."""
    joining = s.facts.granted - before.hosts
    if not joining:
        return replace(before, capacity_since=None)
    since = before.capacity_since if before.capacity_since is not None else s.now
    if s.now < since + s.policy.resume_delay_seconds:
        return replace(before, capacity_since=since)
    hosts = before.hosts | joining
    return replace(before, hosts=hosts, capacity_since=None, reason=joined(joining, len(hosts - before.exclusions)))
