"""Decides how all ranks of a run agree on the step at which they stop together, or save together and continue.

Each attempt is a poll, in which every rank names its step, a proposal of a step that all can still reach, and its
commit. Nobody waits before that step. A proposal that a rank has passed, or that not all have answered, is followed by
another attempt, until time is up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from supervisor.decide.ranks import Ranks, RankState, names
from supervisor.decide.situation import Situation
from supervisor.domain.agreement import Agreement, AnswerKind, Purpose, StepAnswer
from supervisor.domain.job import Decision

ROUND_SECONDS = 2.0
"""The longest time that the answers to a poll or proposal may take; a rank that arrives at a proposed step waits as
long for the commit."""

_SHORTEST_ROUND_SECONDS = 0.05
_STEPS_OF_MARGIN = 4
_STEPS_APART = 10
_PART_OF_A_STEP = 0.25
"""A commit that arrives within this part of a step finds most ranks in the step that they named."""

_SHORTEST_STEP_SECONDS = 1e-6
_ALL_SAVE = " All ranks save after step "
_ACTED = frozenset({AnswerKind.REACHED, AnswerKind.HELD, AnswerKind.PASSED})
_LAST_STEP = 2**53
"""The largest step that every peer can read: JSON knows no larger whole number for certain."""


@dataclass(frozen=True, slots=True)
class NoAgreement:
    """The ranks have not agreed in time; `reason` names the ranks that caused it, as the end of a sentence."""

    reason: str


def negotiated(s: Situation, purpose: Purpose) -> Agreement | NoAgreement:
    """Returns the next agreement: the present one, its next stage, or another attempt."""
    ranks, held = s.facts.ranks, under_way(s, purpose)
    if ranks.states and not ranks.agree_to(purpose):
        return NoAgreement(f"{names(ranks.opposed(purpose))} cannot agree to one")
    if held is None:
        return poll(s, purpose)
    start = just_in_time(s) if purpose is Purpose.STOP and held.step is None else None
    if start is not None and held.began < start:
        # What the ranks said before is out of date then, and the time-out counts from then.
        return poll(s, purpose) if s.reached(start) else held
    if not ranks.have_answered(held):
        if s.reached(_gives_up_at(s, held)):
            return NoAgreement(_culprits(s, held))
        return poll(s, purpose, held.began) if s.reached(max(held.since, s.facts.since) + ROUND_SECONDS) else held
    answers, now = ranks.answers(held), round(s.now, 6)
    if held.step is None:
        # Ranks that all have to save lose nothing by an attempt, and everything if they only seem to differ.
        differing = None if ranks.collective else _differing(answers)
        step = _reachable(s, held, answers)
        return replace(held, step=step, since=now) if differing is None else NoAgreement(differing)
    if all(answer.kind is AnswerKind.ACCEPTED for _, answer in answers):
        return replace(held, committed=True, since=now)
    if s.reached(_gives_up_at(s, held)):
        return NoAgreement("no proposed step was ahead of all ranks")
    return replace(poll(s, purpose, held.began), step=_reachable(s, held, answers))


def under_way(s: Situation, purpose: Purpose) -> Agreement | None:
    """The agreement for this purpose that is not committed yet; None if there is none."""
    held = s.previous.agreement
    if held is None or held.committed or held.purpose is not purpose or held.run != s.job.observed.run:
        return None
    return held


def committed(s: Situation, *purposes: Purpose) -> Agreement | None:
    """The committed agreement of the present run for one of these purposes; None if there is none."""
    held = s.previous.agreement
    if held is None or not held.committed or held.purpose not in purposes or held.run != s.job.observed.run:
        return None
    return held


def is_asking(s: Situation, purpose: Purpose) -> bool:
    """Whether the ranks still have time to answer the last poll or proposal."""
    ranks, held = s.facts.ranks, under_way(s, purpose)
    if held is None or ranks.have_answered(held):
        return False
    return not s.reached(max(held.since, s.facts.since) + ROUND_SECONDS)


def just_in_time(s: Situation) -> float | None:
    """When the ranks must begin to agree on a stop, so that their checkpoint is complete a margin before the deadline.

    None: at once, because the time that a step or a checkpoint takes is unknown, or the deadline.
    """
    deadline, needed = s.breaks_at, seconds_to_save(s.facts.ranks)
    if not s.policy.just_in_time or s.job.held_back or deadline is None or needed is None:
        return None
    # An attempt at this very instant must not begin before it, and its beginning has the store's precision.
    return round(deadline - s.policy.margin_seconds - needed, 6)


def seconds_to_save(ranks: Ranks) -> float | None:
    """How long ranks take, at most, to agree on a step, reach it, and save after it; None if that is unknown."""
    checkpoint, stand = ranks.slowest_checkpoint, _seconds_to_stand(ranks)
    return None if checkpoint is None or stand is None else checkpoint + stand


def seconds_to_leave(ranks: Ranks) -> float | None:
    """How long ranks take, at most, until they are ready to go on without some of them; None if that is unknown.

    They save before it, unless they go on in process and each of them has the whole state.
    """
    is_whole = ranks.agree_to(Purpose.REGROUP) and not ranks.collective
    return _seconds_to_stand(ranks) if is_whole else seconds_to_save(ranks)


def _seconds_to_stand(ranks: Ranks) -> float | None:
    """How long ranks take, at most, to agree on a step and reach it; None if that is unknown."""
    step = ranks.slowest_step
    return None if step is None else _STEPS_OF_MARGIN * step + 2 * ROUND_SECONDS


def poll(s: Situation, purpose: Purpose, began: float | None = None) -> Agreement:
    """Starts a new attempt. `began` is when the first attempt began (Unix seconds; None: this is the first)."""
    # Rounded to the store's precision, so that another supervisor works out the same instants.
    now = round(s.now, 6)
    # An earlier store may have used the highest epoch that a process has heard of.
    heard = max((each.epoch for each in s.facts.ranks.states), default=0)
    return Agreement(
        epoch=max(s.previous.epochs, heard) + 1,
        purpose=purpose,
        run=s.job.observed.run,
        since=now,
        began=now if began is None else began,
    )


def with_agreement(decision: Decision, agreement: Agreement) -> Decision:
    """Returns the decision with that agreement. Its reason names the step of a committed stop."""
    reason = decision.reason
    if agreement.committed and agreement.purpose is Purpose.STOP and agreement.step is not None:
        # It replaces the step of an earlier agreement, which ranks have passed.
        reason = f"{reason.partition(_ALL_SAVE)[0]}{_ALL_SAVE}{agreement.step}."
    return replace(decision, agreement=agreement, epochs=max(decision.epochs, agreement.epoch), reason=reason)


def saved_together(s: Situation, decision: Decision) -> Decision:
    """Returns the decision with the next stage of an agreement on a checkpoint, if `decision` requests a checkpoint.

    Without an agreement the request is as for ranks that do not agree.
    """
    ranks = s.facts.ranks
    if decision.checkpoint != s.previous.checkpoint:
        can_agree = ranks.agree_to(Purpose.CHECKPOINT) and not is_saving(s)
        return with_agreement(decision, poll(s, Purpose.CHECKPOINT)) if can_agree else decision
    late = committed(s, Purpose.CHECKPOINT)
    if late is not None:
        # The commit reached a rank too late: another attempt, if there is time for one.
        until = late.since + s.policy.agreement_timeout_seconds
        is_repeated = decision.agreement is late and ranks.have_passed(late) and not s.reached(until)
        return with_agreement(decision, poll(s, Purpose.CHECKPOINT, late.began)) if is_repeated else decision
    held = under_way(s, Purpose.CHECKPOINT)
    if held is None or decision.agreement is not held:
        return decision
    outcome = negotiated(s, Purpose.CHECKPOINT)
    return replace(decision, agreement=None) if isinstance(outcome, NoAgreement) else with_agreement(decision, outcome)


def is_saving(s: Situation) -> bool:
    """Whether ranks are on their way to an agreed checkpoint. Another agreement would let some of them hang."""
    held = committed(s, Purpose.CHECKPOINT)
    if held is None:
        return False
    answers = s.facts.ranks.answers(held)
    # Every connected process has reached the step, or has gone on past it.
    if len(answers) == len(s.facts.ranks.states) and all(answer.kind in _ACTED for _, answer in answers):
        return False
    return not s.reached(held.since + s.policy.agreement_timeout_seconds)


def _gives_up_at(s: Situation, held: Agreement) -> float:
    """Returns when an attempt fails: after the time-out, or when rank 0 has just enough time left to save alone.

    The attempt has at least a quarter of the time that was left when it began. A supervisor that was started in the
    middle begins anew, because the ranks first have to find it.
    """
    began = max(held.began, s.facts.since)
    end = began + s.policy.agreement_timeout_seconds
    deadline = s.breaks_at if held.purpose is Purpose.STOP else None
    if deadline is None:
        return end
    last = deadline - s.policy.margin_seconds - (s.facts.ranks.slowest_checkpoint or 0.0)
    return min(end, max(last, began + max(0.0, deadline - began) / 4))


def _culprits(s: Situation, held: Agreement) -> str:
    """Names the ranks that made an attempt fail, as the end of a sentence."""
    ranks = s.facts.ranks
    if not ranks.states:
        return "no process is connected"
    if silent := ranks.silent(held):
        return f"{names(silent)} did not answer"
    return f"{names([RankState(process='', rank=rank) for rank in ranks.absent])} did not connect"


def _reachable(s: Situation, held: Agreement, answers: Sequence[tuple[RankState, StepAnswer]]) -> int:
    """Estimates a step that no rank has passed when the commit arrives: two rounds from now, each as long as this one.

    Where steps are much longer than that, it is the next one: if a rank has just passed it, another attempt costs less
    than the whole step that is saved otherwise.
    """
    took = max(answer.at for _, answer in answers) - held.since
    heard_at = s.now + 2 * min(max(took, _SHORTEST_ROUND_SECONDS), ROUND_SECONDS)
    fastest = min((state.step_seconds for state, _ in answers if state.step_seconds is not None), default=None)
    last = 0
    for state, answer in answers:
        step_seconds = state.step_seconds or fastest
        if step_seconds is None:
            last = max(last, answer.step + 1)
            continue
        # What a process measures may be anything, also 0 or 5e-324.
        steps = max(0.0, heard_at - answer.at) / max(step_seconds, _SHORTEST_STEP_SECONDS)
        last = max(last, answer.step + (0 if steps < _PART_OF_A_STEP else math.ceil(steps)))
    return min(1 + last, _LAST_STEP)


def _differing(answers: Sequence[tuple[RankState, StepAnswer]]) -> str | None:
    """Returns the difference in steps between the slowest and the fastest rank; None if they may train in lockstep.

    Ranks that wait for each other in each step differ by one or two, and by what they do while their answers travel,
    which takes two rounds at most. A rank that calls the function with another number never reaches the step at which
    the others wait for it.
    """
    fastest = min((state.step_seconds for state, _ in answers if state.step_seconds), default=None)
    if fastest is None:
        return None
    latest = max(answer.at for _, answer in answers)
    steps = [(answer.step + (latest - answer.at) / (state.step_seconds or fastest), state) for state, answer in answers]
    (fewest, behind), (most, ahead) = min(steps, key=itemgetter(0)), max(steps, key=itemgetter(0))
    if most - fewest <= _STEPS_APART + 2 * ROUND_SECONDS / fastest:
        return None
    return f"{names([behind])} counts {fewest:.0f} steps and {names([ahead])} counts {most:.0f}"
