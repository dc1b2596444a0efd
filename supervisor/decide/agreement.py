"""How all ranks of a run agree on the step at which they stop together, or save together and continue.

Each attempt is a poll, in which every rank names its step, a proposal of a step that all can still reach, and its
commit. Nobody waits before that step. A proposal that a rank has passed, or that not all have answered, is followed by
another attempt, until time is up.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from supervisor.decide.ranks import Ranks, RankState, names
from supervisor.decide.situation import Situation
from supervisor.domain.agreement import Agreement, Answer, AnswerKind, Purpose

ROUND_SECONDS = 2.0
"""The longest time that the answers to a poll or proposal may take; a rank that arrives at a proposed step waits as
long for the commit."""

_SHORTEST_ROUND_SECONDS = 0.05
_STEPS_OF_MARGIN = 4
_STEPS_APART = 10
_PART_OF_A_STEP = 0.25
"""A commit that arrives within this part of a step finds most ranks in the step that they named."""

_SHORTEST_STEP_SECONDS = 1e-6
_LAST_STEP = 2**53
"""The largest step that every peer can read: JSON knows no larger whole number for certain."""


@dataclass(frozen=True, slots=True)
class NoAgreement:
    """The ranks have not agreed in time; `reason` says who is why, as the end of a sentence."""

    reason: str


def negotiated(s: Situation, purpose: Purpose) -> Agreement | NoAgreement:
    """The agreement as it is now to be: the present one, its next stage, or another attempt."""
    held = under_way(s, purpose)
    if s.facts.ranks.states and not s.facts.ranks.agree_to(purpose):
        return NoAgreement(f"{names(s.facts.ranks.opposed(purpose))} cannot agree to one")
    if held is None:
        return poll(s, purpose)
    start = _start(s, held)
    if start is not None and held.began < start:
        # What the ranks said before is out of date then, and the time-out counts from then.
        return held if s.now < start else poll(s, purpose)
    return _answered(s, held)


def _start(s: Situation, held: Agreement) -> float | None:
    """When a step for a stop is proposed, if the ranks train on until then."""
    return just_in_time(s) if held.purpose is Purpose.STOP and held.step is None else None


def _answered(s: Situation, held: Agreement) -> Agreement | NoAgreement:
    """What follows from the answers so far, and from the time."""
    if s.facts.ranks.have_answered(held):
        return _advanced(s, held)
    if s.now >= _gives_up_at(s, held):
        return NoAgreement(_missing(s.facts.ranks, held))
    return poll(s, held.purpose, held.began) if s.now >= _round_ends_at(s, held) else held


def under_way(s: Situation, purpose: Purpose) -> Agreement | None:
    """The agreement for this purpose that is not committed yet; None if there is none."""
    held = s.previous.agreement
    is_present = held is not None and held.purpose is purpose and held.run == s.job.observed.run
    return held if is_present and held is not None and not held.committed else None


def is_asking(s: Situation, purpose: Purpose) -> bool:
    """Whether the ranks still have time to answer what they were asked last."""
    held = under_way(s, purpose)
    return held is not None and not s.facts.ranks.have_answered(held) and s.now < _round_ends_at(s, held)


def just_in_time(s: Situation) -> float | None:
    """When the ranks must begin to agree on a stop, so that their checkpoint is complete a margin before the deadline.

    None: at once, because the time that a step or a checkpoint takes is unknown, or the deadline.
    """
    ranks, deadline = s.facts.ranks, s.breaks_at
    step, checkpoint = ranks.slowest_step, ranks.slowest_checkpoint
    if not s.policy.just_in_time or s.job.held_back or deadline is None or step is None or checkpoint is None:
        return None
    return deadline - s.policy.margin_seconds - checkpoint - _STEPS_OF_MARGIN * step - 2 * ROUND_SECONDS


def instants(s: Situation, purpose: Purpose) -> Iterable[float | None]:
    """When time alone changes the agreement for this purpose, if it is under way."""
    held = under_way(s, purpose)
    if held is None:
        return ()
    start = _start(s, held)
    if start is not None and start > s.now:
        return (start,)
    return _round_ends_at(s, held), _gives_up_at(s, held)


def poll(s: Situation, purpose: Purpose, began: float | None = None) -> Agreement:
    """A new attempt, one of those since `began` (Unix seconds; None: the first one)."""
    # Rounded to the store's precision, so that another supervisor works out the same instants.
    now = round(s.now, 6)
    return Agreement(
        epoch=_next_epoch(s),
        purpose=purpose,
        run=s.job.observed.run,
        since=now,
        began=now if began is None else began,
    )


def _next_epoch(s: Situation) -> int:
    return max(s.previous.epochs, s.facts.ranks.epoch) + 1


def _advanced(s: Situation, held: Agreement) -> Agreement | NoAgreement:
    """The next stage after every rank has answered."""
    answers, now = s.facts.ranks.answers(held), round(s.now, 6)
    if held.step is None:
        # Ranks that all have to save lose nothing by an attempt, and everything if they only seem to differ.
        differing = None if s.facts.ranks.collective else _differing(answers)
        if differing is not None:
            return NoAgreement(differing)
        return replace(held, step=_reachable(s, held, answers), since=now)
    if all(answer.kind is AnswerKind.ACCEPTED for _, answer in answers):
        return replace(held, committed=True, since=now)
    if s.now >= _gives_up_at(s, held):
        return NoAgreement("no proposed step was ahead of all ranks")
    return replace(held, epoch=_next_epoch(s), step=_reachable(s, held, answers), since=now)


def _reachable(s: Situation, held: Agreement, answers: Iterable[tuple[RankState, Answer]]) -> int:
    """A step that no rank will have passed when the commit arrives: two rounds from now, each as long as this one.

    Where steps are much longer than that, it is the next one: if a rank has just passed it, another attempt costs less
    than the whole step that is saved otherwise.
    """
    answers = list(answers)
    took = max(answer.at for _, answer in answers) - held.since
    heard_at = s.now + 2 * min(max(took, _SHORTEST_ROUND_SECONDS), ROUND_SECONDS)
    fastest = min((state.step_seconds for state, _ in answers if state.step_seconds is not None), default=None)
    last = max(_step_at(heard_at, answer, state.step_seconds or fastest) for state, answer in answers)
    return min(1 + last, _LAST_STEP)


def _differing(answers: Sequence[tuple[RankState, Answer]]) -> str | None:
    """How far apart the ranks are that have counted the fewest and the most steps; None if they may train in step.

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


def _step_at(instant: float, answer: Answer, step_seconds: float | None) -> int:
    """The step that a rank has at most begun by then, or will be in with few exceptions."""
    if step_seconds is None:
        return answer.step + 1
    # What a process measures may be anything, also 0 or 5e-324.
    steps = max(0.0, instant - answer.at) / max(step_seconds, _SHORTEST_STEP_SECONDS)
    return answer.step + (0 if steps < _PART_OF_A_STEP else math.ceil(steps))


def _round_ends_at(s: Situation, held: Agreement) -> float:
    return max(held.since, s.facts.since) + ROUND_SECONDS


def _gives_up_at(s: Situation, held: Agreement) -> float:
    """After the time-out, or when rank 0 has just the time to save alone, but not before a quarter of what is left.

    A supervisor that was started in the middle begins anew, as the ranks first have to find it.
    """
    began = max(held.began, s.facts.since)
    deadline = s.breaks_at if held.purpose is Purpose.STOP else None
    if deadline is None:
        return began + s.policy.agreement_timeout_seconds
    last = deadline - s.policy.margin_seconds - (s.facts.ranks.slowest_checkpoint or 0.0)
    last = max(last, began + max(0.0, deadline - began) / 4)
    return min(began + s.policy.agreement_timeout_seconds, last)


def _missing(ranks: Ranks, held: Agreement) -> str:
    silent, absent = ranks.silent(held), ranks.absent
    if not ranks.states:
        return "no process is connected"
    if silent:
        return f"{names(silent)} did not answer"
    return f"{names([RankState(process='', rank=rank) for rank in absent])} did not connect"
