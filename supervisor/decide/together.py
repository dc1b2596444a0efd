"""A run whose ranks act together: the way to a stop, and to a checkpoint, at an agreed step."""

from dataclasses import replace

from supervisor.decide.agreement import ROUND_SECONDS, NoAgreement, just_in_time, negotiated, poll, under_way
from supervisor.decide.ranks import names
from supervisor.decide.reasons import agreeing, alone, following, insisting, running, training_on
from supervisor.decide.situation import Situation
from supervisor.decide.stopping import stop, with_agreement
from supervisor.domain.agreement import Agreement, Purpose
from supervisor.domain.job import Decision


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
