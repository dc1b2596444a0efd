"""Ranks that answer, for decisions about agreed steps. Instants count from `T0`."""

from collections.abc import Iterable
from dataclasses import replace

from supervisor.decide.ranks import Ranks, RankState
from supervisor.decide.situation import JobFacts
from supervisor.domain.agreement import Agreement, AnswerKind, Purpose, StepAnswer
from supervisor.domain.job import SupervisedJob
from tests.supervisor.decide.decide_builders import T0, notice, noticed, seeing

BOTH = frozenset(Purpose)
SIZE = 4


def rank_states(size: int = SIZE, **changes: object) -> tuple[RankState, ...]:
    """Ranks 0 to `size` - 1 that agree to everything and have not answered; each step takes 0.1 s."""
    state = RankState(process="", rank=None, purposes=BOTH, world_size=size, step_seconds=0.1)
    state = replace(state, **changes)  # type: ignore[arg-type]  # Names are its fields.
    return tuple(replace(state, process=f"p{number}", rank=number) for number in range(size))


def answering(
    states: Iterable[RankState], agreement: Agreement, kind: AnswerKind, *, at: float, step: int = 100
) -> tuple[RankState, ...]:
    """All of these give the same answer, `at` seconds after `T0`."""
    answer = StepAnswer(epoch=agreement.epoch, at_step=agreement.step, kind=kind, step=step, at=T0 + at)
    return tuple(replace(state, answer=answer, epoch=agreement.epoch) for state in states)


def stopping_for(
    states: Iterable[RankState], *, left: float = 300.0, since: float = T0, acknowledged: Iterable[int] = ()
) -> JobFacts:
    """A notice on n4, which the job needs, and these ranks."""
    ranks = Ranks(tuple(states), frozenset(acknowledged))
    return replace(seeing(noticed(notice(4, left=left))), ranks=ranks, since=since)


def present(job: SupervisedJob) -> Agreement:
    assert job.decision.agreement is not None
    return job.decision.agreement
