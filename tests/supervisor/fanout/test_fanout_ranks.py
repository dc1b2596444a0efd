"""What is remembered of the answers of ranks, which may be repeated and may overtake each other."""

import pytest

from supervisor.domain.agreement import Agreement, AnswerKind, Purpose, StepAnswer
from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.order import Worker
from supervisor.fanout.ranks import Measurements, RankStates, Statement

JOB = JobId(JobName("job"), "uid", 0.0)
WORKER = Worker("process", JOB, 1, Host("n1"), 0)
PROPOSAL = Agreement(epoch=2, purpose=Purpose.STOP, run=1, step=20, since=0.0, began=0.0)


def _answer(kind: AnswerKind, at_step: int | None = 20, epoch: int = 2) -> StepAnswer:
    return StepAnswer(epoch=epoch, at_step=at_step, kind=kind, step=17, at=1.0)


@pytest.mark.parametrize(
    ("last", "late"),
    [
        (_answer(AnswerKind.ACCEPTED), _answer(AnswerKind.DECLINED, None)),
        (_answer(AnswerKind.ACCEPTED), _answer(AnswerKind.ACCEPTED, 90, epoch=1)),
        (_answer(AnswerKind.REACHED), _answer(AnswerKind.COMMITTED)),
    ],
    ids=["the poll", "an earlier attempt", "the commit"],
)
def test_an_answer_that_comes_late_replaces_no_later_one(last: StepAnswer, late: StepAnswer) -> None:
    """Otherwise the rank would count as silent, and all others would wait at the step."""
    ranks = RankStates(lambda _: [WORKER], lambda _: PROPOSAL, lambda _: None)
    ranks.put_statement(WORKER, Statement(purposes=frozenset({Purpose.STOP})))
    for answer in (last, late):
        ranks.answered(WORKER, answer, Measurements())
    assert [state.answer for state in ranks.of(JOB, 1).states] == [last]
