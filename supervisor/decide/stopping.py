"""Decides how a run stops: the transitions to a STOP, and the phase Stopping.

The phase begins when a stop is certain, or, if all ranks stop at one step, when that step is committed. It lasts until
rank 0 has acknowledged, the run has ended, or time is up.
"""

from dataclasses import replace

from supervisor.decide.agreement import (
    ROUND_SECONDS,
    NoAgreement,
    is_asking,
    is_saving,
    just_in_time,
    negotiated,
    poll,
    under_way,
    with_agreement,
)
from supervisor.decide.policy import doubled
from supervisor.decide.ranks import names
from supervisor.decide.reasons import following, resumes_from, running
from supervisor.decide.situation import RETURN_SECONDS, Situation
from supervisor.domain.agreement import Purpose
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Decision, Phase, RequestKind, Stop


def stop_together(s: Situation, why: str) -> Decision:
    """Returns the next transition towards a stop with this reason.

    If all ranks can agree, the job keeps running until they have; otherwise it stops at once, rank 0 first.
    """
    ranks, is_running = s.facts.ranks, s.job.observed.running
    if is_running and not s.reached(awaited_until(s)):
        return s.previous
    if not is_running or (under_way(s, Purpose.STOP) is None and not ranks.agree_to(Purpose.STOP)):
        opposed = ranks.opposed(Purpose.STOP)
        if len(opposed) != len(ranks.states):  # The others do agree.
            why = _without_step(s, why, f"{names(opposed)} cannot agree to one")
        return stop(s, why)
    if is_saving(s):
        return s.previous
    outcome = negotiated(s, Purpose.STOP)
    if isinstance(outcome, NoAgreement):
        # The stop is certain now. Ranks that can only save together are asked again until the last moment.
        decision = stop(s, _without_step(s, why, outcome.reason))
        return with_agreement(decision, poll(s, Purpose.STOP)) if ranks.collective else decision
    if outcome.committed:
        decision = stop(s, why)
        if decision.stop is not None:
            decision = replace(decision, stop=replace(decision.stop, run=outcome.run))
        return with_agreement(decision, outcome)
    start = just_in_time(s)
    reason = f"{why} All ranks stop at one step shortly before; until then they train on."
    if start is None or s.reached(start):
        reason = f"{why} All ranks are to stop at one step."
    # The host list does not change meanwhile: a change would move ranks.
    return with_agreement(replace(s.previous, window_until=None, reason=reason), outcome)


def awaited_until(s: Situation) -> float:
    """Until when a newly started supervisor waits for the ranks to return, because they may be able to agree."""
    if s.facts.ranks.states or s.facts.rank_zero.connected:
        return s.facts.since
    end = s.facts.since + ROUND_SECONDS
    return end if s.breaks_at is None else min(end, s.breaks_at - s.policy.margin_seconds)


def _without_step(s: Situation, why: str, who: str) -> str:
    """Returns the reason of a stop without an agreed step; `who` names the ranks that caused it."""
    if s.facts.ranks.collective:
        return f"{why} There is no agreed step yet, as {who}: asking again, as all ranks save together."
    return f"{why} There is no agreed step, as {who}: rank 0 saves alone."


def withdrawn_stop(decision: Decision) -> Decision:
    """Returns the decision without a stop that is not committed, because its reason does not exist any more."""
    held = decision.agreement
    if held is None or held.committed or held.purpose is not Purpose.STOP:
        return decision
    reason = following(decision.reason, running(decision.run, len(decision.hosts - decision.exclusions)))
    return replace(decision, agreement=None, reason=reason)


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
        short_runs=0 if _lasted(s, s.now) else s.previous.short_runs,
        request=None if s.job.observed.ending else s.job.observed.request,
    )


def rested(s: Situation, decision: Decision, lost_at: float) -> Decision:
    """Returns the decision about a run that was lost at that instant.

    After a short run there is a pause before the next.

    Whatever ends a run as soon as it begins would end the next one, too: without a pause, a job whose launcher vanished
    each time was suspended and resumed every few seconds, for ever. A run that was stopped because of a notice is none:
    the next one has other hosts.
    """
    if _lasted(s, lost_at):
        return replace(decision, short_runs=0)
    short_runs = s.previous.short_runs
    pause = doubled(s.policy.resume_backoff_seconds, short_runs)
    why = f"Run {s.previous.run} was lost soon after it began: pausing {pause:g} s before the next one."
    reason = f"{decision.reason} {why}"
    return replace(decision, short_runs=short_runs + 1, not_before=s.now + pause, reason=reason)


def _lasted(s: Situation, until: float) -> bool:
    """Whether the last run lasted longer than a start may take. A run that began at an unknown time did."""
    since = s.previous.run_since
    return since is None or until >= since + s.policy.resume_timeout_seconds


def stopping(s: Situation) -> Decision:
    """Handles the phase Stopping."""
    before, observed, stop = s.previous, s.job.observed, s.previous.stop
    if stop is None:  # Control never writes this; a job must not hang on it.
        return replace(before, phase=Phase.SUSPENDED, waiting_since=s.now, agreement=None)
    if observed.run > stop.run:
        # The launcher restarted the run before it received the STOP: the STOP is for the new run.
        stop = replace(stop, run=observed.run)
    unranked_since, ranks, answer = s.facts.rank_zero.unranked_since, s.facts.ranks, observed.acknowledgement
    ends = observed.ending or (observed.request is not None and observed.request.kind is RequestKind.STOP)
    agreed, reason = before.agreed_stop, None
    if not observed.running:
        ended = "had not started" if observed.exit_code is None else f"ended with code {observed.exit_code}"
        reason = f"{before.reason} The run {ended}."
    elif _is_acknowledged(s, stop):
        reason = f"{before.reason} {_acknowledged(answer, together=agreed is not None or unranked_since is not None)}"
    elif not answers(answer, stop) and _have_all_failed(s):
        left = resumes_from(s.facts.saved_step, ends=ends)
        reason = f"{before.reason} All processes have failed before they saved; {left}."
    elif s.reached(_stop_deadline(s, stop)):
        left = resumes_from(s.facts.saved_step, ends=ends)
        reason = f"{before.reason} {_unanswered_by(s, stop)} in time; {left}."
    if reason is not None:
        failed = failure(answer, stop)
        if failed is not None:
            left = resumes_from(failed.resumes_from, ends=ends)
            reason = f"{before.reason} Rank {failed.rank} could not save: {failed.error}; {left}."
        # The job keeps its hosts until its command has ended and cannot start again: `waiting.wait` releases them.
        return replace(before, phase=Phase.SUSPENDED, reason=reason, waiting_since=s.now, stop=None, agreement=None)
    before = replace(before, run=max(before.run, stop.run), stop=stop)
    # Ranks that save together ignore a STOP without an agreement, so one that was decided while none of them was
    # connected can still become one at an agreed step.
    can_agree = under_way(s, Purpose.STOP) is not None or (ranks.collective and ranks.agree_to(Purpose.STOP))
    if agreed is not None or (can_agree and not stop.everyone):
        return _stopping_together(s, before, stop)
    everyone = stop.everyone or s.reached(_everyone_at(s, stop))
    reason = before.reason
    if everyone and not stop.everyone and unranked_since is not None:
        reason = f"{reason} No process is rank 0, as none knows its rank: all are told to save."
    return replace(before, reason=reason, stop=replace(stop, everyone=everyone), agreement=None)


def _stopping_together(s: Situation, before: Decision, stop: Stop) -> Decision:
    """Handles a stop at an agreed step, or a certain stop on whose step the ranks have not agreed yet."""
    ranks, agreed = s.facts.ranks, s.previous.agreed_stop
    if s.reached(_stop_deadline(s, stop) - s.policy.leave_margin_seconds):
        # The STOP goes to all processes, agreed or not.
        everyone = replace(before, stop=replace(stop, everyone=True))
        reason = f"{before.reason} Time is up: all ranks exit, and none can save."
        return everyone if agreed is not None else replace(everyone, agreement=None, reason=reason)
    if agreed is not None:
        # The commit came too late, which no rank can know alone: those that went on are asked again.
        return with_agreement(before, poll(s, Purpose.STOP)) if ranks.have_passed(agreed) else before
    outcome = negotiated(s, Purpose.STOP)
    if not isinstance(outcome, NoAgreement):
        return with_agreement(before, outcome)
    if ranks.collective:
        return before if is_asking(s, Purpose.STOP) else with_agreement(before, poll(s, Purpose.STOP))
    return replace(before, agreement=None, reason=_without_step(s, before.reason, outcome.reason))


def _stop_deadline(s: Situation, stop: Stop) -> float:
    """Until when the supervisor waits for rank 0: then the first noticed host that the run needs is gone.

    Rank 0 gets the margin even after that instant: it may be alive and in the middle of its checkpoint.
    """
    deadline = s.breaks_at
    if deadline is None:
        return stop.since + s.policy.stop_timeout_seconds
    return max(deadline, stop.since + s.policy.margin_seconds)


def _everyone_at(s: Situation, stop: Stop) -> float:
    """When the STOP goes to all processes: near the deadline, or if there is no rank 0, but never before rank 0 got it.

    It goes to all at once if no process has known its rank for some time, and shortly before the deadline in any case.
    """
    policy, rank_zero = s.policy, s.facts.rank_zero
    deadline = _stop_deadline(s, stop)
    since = max(rank_zero.since, stop.since)
    if rank_zero.unranked_since is not None:
        at = max(rank_zero.unranked_since + policy.rank_zero_grace_seconds, stop.since)
    elif rank_zero.connected:
        at = max(deadline - policy.margin_seconds, since + policy.rank_zero_head_start_seconds)
    else:
        at = since + policy.rank_zero_grace_seconds
    return min(at, deadline - policy.leave_margin_seconds)


def _have_all_failed(s: Situation) -> bool:
    """Whether no process is left that could save: all elastic agents of torchrun have said that theirs have failed.

    A host that goes during a save takes its notice along, and the stop would last until its time limit.
    """
    agents = s.facts.members.by_host.values()
    have_failed = any(each.failed for each in agents) and all(each.failed or each.waits for each in agents)
    # A supervisor that was started just now does not know all agents yet.
    return have_failed and not s.facts.ranks.states and s.reached(s.facts.since + RETURN_SECONDS)


def _is_acknowledged(s: Situation, stop: Stop) -> bool:
    """Whether rank 0 has answered the STOP, and all others have if it is at an agreed step.

    The answers of the others are lost with the supervisor that received them: another one waits for them no longer than
    it takes to agree.
    """
    answer = s.job.observed.acknowledgement
    if answer is None or s.previous.agreed_stop is None:
        return answers(answer, stop)
    if s.facts.since > stop.since:
        # From this instant on, the answer of rank 0 stands for that of all ranks.
        given_up_at = max(answer.at, s.facts.since) + s.policy.agreement_timeout_seconds
        return answers(answer, stop) and s.reached(given_up_at)
    return _concerns(answer, stop) and s.facts.ranks.have_acknowledged(stop.generation)


def answers(acknowledgement: Acknowledgement | None, stop: Stop) -> bool:
    """Whether an acknowledgement answers that STOP; a process whose save has failed may try again until it exits."""
    if acknowledgement is None or not _concerns(acknowledgement, stop):
        return False
    return acknowledgement.kind is not AcknowledgementKind.FAILED or acknowledgement.has_left


def failure(acknowledgement: Acknowledgement | None, stop: Stop) -> Acknowledgement | None:
    """The answer to that STOP, if it reports a checkpoint that could not be saved."""
    if acknowledgement is None or acknowledgement.kind is not AcknowledgementKind.FAILED:
        return None
    return acknowledgement if _concerns(acknowledgement, stop) else None


def _concerns(acknowledgement: Acknowledgement, stop: Stop) -> bool:
    return acknowledgement.run == stop.run and acknowledgement.generation >= stop.generation


def _acknowledged(answer: Acknowledgement | None, *, together: bool) -> str:
    who, has, they = ("All ranks", "have", "they") if together else ("Rank 0", "has", "it")
    if answer is None or answer.kind is AcknowledgementKind.LEFT:
        return f"{who} {has} left, without saying that {they} saved."
    of_step = "" if answer.step is None else f" of step {answer.step}"
    if answer.kind is AcknowledgementKind.KEPT:
        return f"{who} {has} left the state{of_step} in the memory of hosts that stay; no checkpoint of it is saved."
    return f"{who} {has} saved a checkpoint{of_step}."


def _unanswered_by(s: Situation, stop: Stop) -> str:
    """The processes that have not answered a STOP in time, as the beginning of a sentence."""
    ranks = s.facts.ranks
    if s.previous.agreed_stop is not None:
        silent = [each for each in ranks.states if each.acknowledged < stop.generation]
        who = names(silent, [rank for rank in ranks.absent if rank not in ranks.left]) or "rank 0"
        return f"{who[:1].upper()}{who[1:]} did not answer"
    unranked_since = s.facts.rank_zero.unranked_since
    return "Rank 0 did not answer" if unranked_since is None else "Not all processes have answered"
