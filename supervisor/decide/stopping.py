"""The phase Stopping: it lasts until rank 0 has acknowledged, the run has ended, or time is up."""

from dataclasses import replace

from supervisor.decide.reasons import acknowledged, run_ended, stop_unanswered
from supervisor.decide.situation import Situation
from supervisor.domain.ids import Host
from supervisor.domain.job import Acknowledgement, Decision, Phase, Stop


def stop(s: Situation, reason: str) -> Decision:
    """Starts a STOP.

    The host list does not change during a STOP: a change would move ranks while rank 0 saves.
    """
    return replace(
        s.previous,
        phase=Phase.STOPPING,
        reason=reason,
        stop=Stop(run=s.previous.run, generation=s.previous.generation, since=s.now),
        window_until=None,
        below_min_since=None,
        waiting_since=None,
        capacity_since=None,
        resume_until=None,
        growth=None,
    )


def stopping(s: Situation) -> Decision:
    """Handles the phase Stopping."""
    before, observed, stop = s.previous, s.job.observed, s.previous.stop
    if stop is None:  # Control never writes this; a job must not hang on it.
        return _suspended(s, before.reason)
    if observed.run > stop.run:
        # The launcher restarted the run before it received the STOP: the STOP is for the new run.
        stop = replace(stop, run=observed.run)
    if not observed.running:
        return _suspended(s, run_ended(before.reason, observed))
    if answers(observed.acknowledgement, stop):
        return _suspended(s, acknowledged(before.reason, observed.acknowledgement))
    if s.now >= stop_deadline(s, stop):
        return _suspended(s, stop_unanswered(before.reason))
    everyone = stop.everyone or s.now >= everyone_at(s, stop)
    return replace(before, run=max(before.run, stop.run), stop=replace(stop, everyone=everyone))


def answers(acknowledgement: Acknowledgement | None, stop: Stop) -> bool:
    """Whether an acknowledgement answers that STOP."""
    return (
        acknowledgement is not None
        and acknowledgement.run == stop.run
        and acknowledgement.generation >= stop.generation
    )


def stop_deadline(s: Situation, stop: Stop) -> float:
    """When waiting for rank 0 ends: when the first noticed host is gone and breaks the run.

    Rank 0 gets the margin even after that instant: it may be alive and in the middle of its checkpoint.
    """
    deadline = breaks_at(s)
    if deadline is None:
        return stop.since + s.policy.stop_timeout_seconds
    return max(deadline, stop.since + s.policy.margin_seconds)


def breaks_at(s: Situation) -> float | None:
    """When the first host that the run needs is gone; None if none has a notice."""
    return s.deadline(_stop_hosts(s))


def everyone_at(s: Situation, stop: Stop) -> float:
    """When the STOP goes to all processes: near the deadline or if there is no rank 0, but never before rank 0.

    Shortly before the deadline it goes to all in any case.
    """
    policy, rank_zero = s.policy, s.facts.rank_zero
    deadline = stop_deadline(s, stop)
    since = max(rank_zero.since, stop.since)
    if rank_zero.connected:
        at = max(deadline - policy.margin_seconds, since + policy.rank_zero_head_start_seconds)
    else:
        at = since + policy.rank_zero_grace_seconds
    return min(at, deadline - policy.leave_margin_seconds)


def _stop_hosts(s: Situation) -> frozenset[Host]:
    """The hosts whose loss breaks the run; one that was excluded before the STOP may go without harm."""
    before, launcher = s.previous, s.job.spec.launcher_host
    in_use = before.hosts - before.exclusions if s.job.observed.applied >= before.excluded_at else before.hosts
    return in_use if launcher is None else in_use | {launcher}


def _suspended(s: Situation, reason: str) -> Decision:
    """The job keeps its hosts until its command has ended and cannot start again (`waiting.wait` releases them)."""
    return replace(s.previous, phase=Phase.SUSPENDED, reason=reason, waiting_since=s.now, stop=None)
