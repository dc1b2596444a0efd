"""The phase Stopping: it lasts until rank 0 has acknowledged, the run has ended, or time is up.

It begins when a stop is certain, or, if all ranks stop at one step, when that step is committed.
"""

from dataclasses import replace

from supervisor.decide.agreement import ROUND_SECONDS, NoAgreement, is_asking, just_in_time, negotiated, poll, under_way
from supervisor.decide.ranks import names
from supervisor.decide.reasons import (
    acknowledged,
    agreeing,
    all_stop_at,
    alone,
    could_not_save,
    following,
    insisting,
    run_ended,
    running,
    short_run,
    stop_unanswered,
    training_on,
    unranked,
    unsaved,
)
from supervisor.decide.situation import Situation
from supervisor.domain.agreement import Agreement, Purpose
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Decision, Phase, RequestKind, Stop

MAX_BACKOFF_DOUBLINGS = 5
"""The pause after a failed resume, or after a short run, grows to 32 times the first one."""


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
        agreement=None,
        short_runs=0 if lasted(s, s.now) else s.previous.short_runs,
    )


def lasted(s: Situation, until: float) -> bool:
    """Whether the last run was there for longer than a start may take; one that began at an unknown time was."""
    since = s.previous.run_since
    return since is None or until >= since + s.policy.resume_timeout_seconds


def rested(s: Situation, decision: Decision, lost_at: float) -> Decision:
    """The decision about a run that was lost at that instant, with a pause before the next one if it was short.

    Whatever ends a run as soon as it begins would end the next one, too: without a pause, a job whose launcher vanished
    each time was suspended and resumed every few seconds, for ever. A run that was stopped because of a notice is none:
    the next one has other hosts.
    """
    if lasted(s, lost_at):
        return replace(decision, short_runs=0)
    short_runs = s.previous.short_runs
    pause = s.policy.resume_backoff_seconds * 2 ** min(short_runs, MAX_BACKOFF_DOUBLINGS)
    return replace(
        decision,
        short_runs=short_runs + 1,
        not_before=s.now + pause,
        reason=f"{decision.reason} {short_run(s.previous.run, pause)}",
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
        return _suspended(s, _unsaved(s, stop) or run_ended(before.reason, observed))
    if _is_acknowledged(s, stop):
        return _suspended(s, _unsaved(s, stop) or _acknowledged(s, observed.acknowledgement))
    if s.now >= stop_deadline(s, stop):
        return _suspended(s, _unsaved(s, stop) or _unanswered(s, stop))
    if before.agreed_stop is not None or _awaits_agreement(s, stop):
        return _together(s, stop)
    everyone = stop.everyone or s.now >= everyone_at(s, stop)
    is_for_want_of_ranks = everyone and not stop.everyone and s.facts.rank_zero.unranked_since is not None
    reason = unranked(before.reason) if is_for_want_of_ranks else before.reason
    run = max(before.run, stop.run)
    return replace(before, run=run, reason=reason, stop=replace(stop, everyone=everyone), agreement=None)


def answers(acknowledgement: Acknowledgement | None, stop: Stop) -> bool:
    """Whether an acknowledgement answers that STOP; a process whose save has failed may try again until it exits."""
    if acknowledgement is None or not _concerns(acknowledgement, stop):
        return False
    return acknowledgement.kind is not AcknowledgementKind.FAILED or acknowledgement.has_left


def failure(acknowledgement: Acknowledgement | None, stop: Stop) -> Acknowledgement | None:
    """The answer to that STOP if it says that a checkpoint could not be saved."""
    if acknowledgement is None or acknowledgement.kind is not AcknowledgementKind.FAILED:
        return None
    return acknowledgement if _concerns(acknowledgement, stop) else None


def _concerns(acknowledgement: Acknowledgement, stop: Stop) -> bool:
    return acknowledgement.run == stop.run and acknowledgement.generation >= stop.generation


def _acknowledged(s: Situation, answer: Acknowledgement | None) -> str:
    together = s.previous.agreed_stop is not None or s.facts.rank_zero.unranked_since is not None
    return acknowledged(s.previous.reason, answer, together=together)


def _unsaved(s: Situation, stop: Stop) -> str | None:
    """The reason of a stop in which a save has failed; None if none has."""
    failed = failure(s.job.observed.acknowledgement, stop)
    return None if failed is None else could_not_save(s.previous.reason, failed, ends=_ends(s))


def _unanswered(s: Situation, stop: Stop) -> str:
    ranks, said = s.facts.ranks, "Rank 0 did not answer"
    if s.previous.agreed_stop is not None:
        absent = [rank for rank in ranks.absent if rank not in ranks.left]
        who = names(ranks.unacknowledged(stop.generation), absent) or "rank 0"
        said = f"{who[:1].upper()}{who[1:]} did not answer"
    elif s.facts.rank_zero.unranked_since is not None:
        said = "Not all processes have answered"
    return stop_unanswered(s.previous.reason, said, s.facts.saved_step, ends=_ends(s))


def _ends(s: Situation) -> bool:
    """Whether the job ends for good after the stop."""
    observed = s.job.observed
    return observed.ending or (observed.request is not None and observed.request.kind is RequestKind.STOP)


def _is_acknowledged(s: Situation, stop: Stop) -> bool:
    """Whether rank 0 has answered the STOP, and all others have if it is at an agreed step.

    What the others said is lost with the supervisor that heard it: another one waits for them no longer than it takes
    to agree.
    """
    answer, ranks = s.job.observed.acknowledgement, s.facts.ranks
    if answer is None or s.previous.agreed_stop is None:
        return answers(answer, stop)
    if s.facts.since > stop.since:
        return answers(answer, stop) and s.now >= acknowledged_at(s, answer)
    return _concerns(answer, stop) and ranks.have_acknowledged(stop.generation)


def acknowledged_at(s: Situation, answer: Acknowledgement) -> float:
    """When a supervisor that was started during a stop takes rank 0's answer for that of all ranks."""
    return max(answer.at, s.facts.since) + s.policy.agreement_timeout_seconds


def _awaits_agreement(s: Situation, stop: Stop) -> bool:
    """Whether a STOP is not given yet, because the ranks are still to agree.

    Ranks that save together ignore a STOP without an agreement, so one that was decided while none of them was
    connected can still become one at an agreed step.
    """
    ranks = s.facts.ranks
    can_agree = ranks.collective and ranks.agree_to(Purpose.STOP)
    return not stop.everyone and (under_way(s, Purpose.STOP) is not None or can_agree)


def _together(s: Situation, stop: Stop) -> Decision:
    """Handles a stop whose ranks act at an agreed step, or are still to agree although it is certain."""
    before = replace(s.previous, run=max(s.previous.run, stop.run), stop=stop)
    agreed = s.previous.agreed_stop
    if s.now >= last_moment(s, stop):
        told = replace(before, stop=replace(stop, everyone=True))
        return told if agreed is not None else replace(told, agreement=None, reason=unsaved(before.reason))
    if agreed is not None:
        # The commit came too late, which no rank can know alone: those that went on are asked again.
        return with_agreement(before, poll(s, Purpose.STOP)) if s.facts.ranks.have_passed(agreed) else before
    outcome = negotiated(s, Purpose.STOP)
    if not isinstance(outcome, NoAgreement):
        return with_agreement(before, outcome)
    if s.facts.ranks.collective:
        return before if is_asking(s, Purpose.STOP) else with_agreement(before, poll(s, Purpose.STOP))
    return replace(before, agreement=None, reason=alone(before.reason, outcome.reason))


def with_agreement(decision: Decision, agreement: Agreement) -> Decision:
    """The decision with that agreement; the reason names the step of a committed stop."""
    reason = decision.reason
    if agreement.committed and agreement.purpose is Purpose.STOP and agreement.step is not None:
        reason = all_stop_at(reason, agreement.step)
    return replace(decision, agreement=agreement, epochs=max(decision.epochs, agreement.epoch), reason=reason)


def last_moment(s: Situation, stop: Stop) -> float:
    """When a STOP goes to all processes in any case, agreed or not."""
    return stop_deadline(s, stop) - s.policy.leave_margin_seconds


def stop_deadline(s: Situation, stop: Stop) -> float:
    """When waiting for rank 0 ends: when the first noticed host is gone and breaks the run.

    Rank 0 gets the margin even after that instant: it may be alive and in the middle of its checkpoint.
    """
    deadline = s.breaks_at
    if deadline is None:
        return stop.since + s.policy.stop_timeout_seconds
    return max(deadline, stop.since + s.policy.margin_seconds)


def everyone_at(s: Situation, stop: Stop) -> float:
    """When the STOP goes to all processes: near the deadline or if there is no rank 0, but never before rank 0.

    At once if for some time no process has known its rank. Shortly before the deadline it goes to all in any case.
    """
    policy, rank_zero = s.policy, s.facts.rank_zero
    deadline = stop_deadline(s, stop)
    since = max(rank_zero.since, stop.since)
    if rank_zero.unranked_since is not None:
        at = max(rank_zero.unranked_since + policy.rank_zero_grace_seconds, stop.since)
    elif rank_zero.connected:
        at = max(deadline - policy.margin_seconds, since + policy.rank_zero_head_start_seconds)
    else:
        at = since + policy.rank_zero_grace_seconds
    return min(at, deadline - policy.leave_margin_seconds)


def _suspended(s: Situation, reason: str) -> Decision:
    """The job keeps its hosts until its command has ended and cannot start again (`waiting.wait` releases them)."""
    return replace(s.previous, phase=Phase.SUSPENDED, reason=reason, waiting_since=s.now, stop=None, agreement=None)


def stop_together(s: Situation, why: str) -> Decision:
    """The next transition towards a stop, for a reason to stop.

    If all ranks can agree, the job keeps running until they have; otherwise it stops at once, rank 0 first.
    """
    if s.job.observed.running and s.now < awaited_until(s):
        return s.previous
    if not s.job.observed.running or not _can_agree(s):
        return stop(s, _with_opposed(s, why))
    if is_saving(s):
        return s.previous
    outcome = negotiated(s, Purpose.STOP)
    if isinstance(outcome, NoAgreement):
        return _without_agreement(s, why, outcome)
    if outcome.committed:
        stopped = stop(s, why)
        run = replace(stopped.stop, run=outcome.run) if stopped.stop is not None else None
        return with_agreement(replace(stopped, stop=run), outcome)
    reason = training_on(why) if _has_time(s) else agreeing(why)
    # The host list does not change meanwhile: a change would move ranks.
    return with_agreement(replace(s.previous, window_until=None, reason=reason), outcome)


def withdrawn_stop(decision: Decision) -> Decision:
    """The decision without a stop that has not been committed, as there is no reason for it any more."""
    held = decision.agreement
    if held is None or held.committed or held.purpose is not Purpose.STOP:
        return decision
    reason = following(decision.reason, running(decision.run, len(decision.hosts - decision.exclusions)))
    return replace(decision, agreement=None, reason=reason)


def saved_together(s: Situation, decision: Decision) -> Decision:
    """The decision with the next stage of an agreement on a checkpoint, if `decision` asks for one.

    Without an agreement the request is as for ranks that do not agree.
    """
    if decision.checkpoint != s.previous.checkpoint:
        if s.facts.ranks.agree_to(Purpose.CHECKPOINT) and not is_saving(s):
            return with_agreement(decision, poll(s, Purpose.CHECKPOINT))
        return decision
    held = under_way(s, Purpose.CHECKPOINT) or _passed(s)
    if held is None or decision.agreement is not held:
        return decision
    if held.committed:
        return with_agreement(decision, poll(s, Purpose.CHECKPOINT, held.began))
    outcome = negotiated(s, Purpose.CHECKPOINT)
    return replace(decision, agreement=None) if isinstance(outcome, NoAgreement) else with_agreement(decision, outcome)


def is_saving(s: Situation) -> bool:
    """Whether ranks are on their way to an agreed checkpoint: another agreement would leave some of them hanging."""
    held = _committed_checkpoint(s)
    return held is not None and s.now < saving_until(s, held) and not s.facts.ranks.have_acted(held)


def saving_until(s: Situation, held: Agreement) -> float:
    """When a committed checkpoint is waited for no longer."""
    return held.since + s.policy.agreement_timeout_seconds


def _passed(s: Situation) -> Agreement | None:
    """A committed checkpoint that reached a rank too late, if there is time for another attempt."""
    held = _committed_checkpoint(s)
    if held is None or s.now >= saving_until(s, held):
        return None
    return held if s.facts.ranks.have_passed(held) else None


def _committed_checkpoint(s: Situation) -> Agreement | None:
    held = s.previous.agreement
    if held is None or not held.committed or held.purpose is not Purpose.CHECKPOINT:
        return None
    return held if held.run == s.job.observed.run else None


def _can_agree(s: Situation) -> bool:
    return under_way(s, Purpose.STOP) is not None or s.facts.ranks.agree_to(Purpose.STOP)


def awaited_until(s: Situation) -> float:
    """Until when a supervisor that has just been started waits for the ranks to return: they may be able to agree."""
    if s.facts.ranks.states or s.facts.rank_zero.connected:
        return s.facts.since
    end = s.facts.since + ROUND_SECONDS
    return end if s.breaks_at is None else min(end, s.breaks_at - s.policy.margin_seconds)


def _with_opposed(s: Situation, why: str) -> str:
    """The reason of a stop without an agreement; it names the ranks that do not agree if the others do."""
    ranks = s.facts.ranks
    opposed = ranks.opposed(Purpose.STOP)
    if len(opposed) == len(ranks.states):
        return why
    return (insisting if ranks.collective else alone)(why, f"{names(opposed)} cannot agree to one")


def _has_time(s: Situation) -> bool:
    start = just_in_time(s)
    return start is not None and s.now < start


def _without_agreement(s: Situation, why: str, outcome: NoAgreement) -> Decision:
    """The stop is certain now. Ranks that can only save together are asked again until the last moment."""
    if not s.facts.ranks.collective:
        return stop(s, alone(why, outcome.reason))
    return with_agreement(stop(s, insisting(why, outcome.reason)), poll(s, Purpose.STOP))
