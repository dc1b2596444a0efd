"""What ranks say is collected without a decision for each answer."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from supervisor.decide.ranks import NO_RANKS, ChangeCosts, RankState
from supervisor.domain.agreement import Agreement, AnswerKind, Purpose, StepAnswer
from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.order import Worker
from supervisor.fanout.ranks import Measurements, RankStates, Statement
from tests.supervisor.decide.decide_builders import T0

JOB = JobId(JobName("job"), "uid", T0)
SIZE = 1024
POLL = Agreement(epoch=1, purpose=Purpose.STOP, run=1, since=T0, began=T0)
AGREES = Statement(purposes=frozenset(Purpose), world_size=SIZE)


class _Scene:
    """A job of 1,024 connected ranks, its present agreement, and how often a decision was asked for."""

    def __init__(self) -> None:
        self.workers = {number: Worker(f"p{number}", JOB, 1, Host("n1"), number) for number in range(SIZE)}
        self.agreement: Agreement | None = POLL
        self.asked = 0
        self.ranks = RankStates(lambda _job: list(self.workers.values()), lambda _job: self.agreement, self._ask)
        for worker in self.workers.values():
            self.ranks.put_statement(worker, AGREES)
        self.asked = 0

    def _ask(self, _job: JobName) -> None:
        self.asked += 1

    def answers(self, number: int, kind: AnswerKind, *, step: int = 100, at: float = T0, run: int = 1) -> None:
        assert self.agreement is not None
        answer = StepAnswer(epoch=self.agreement.epoch, at_step=self.agreement.step, kind=kind, step=step, at=at)
        self.ranks.answered(replace(self.workers[number], run=run), answer, Measurements(unread_seconds=0.5))


@pytest.fixture
def scene() -> _Scene:
    return _Scene()


def test_a_round_of_1024_answers_asks_for_one_decision(scene: _Scene) -> None:
    for stage in (POLL, replace(POLL, step=120), replace(POLL, epoch=2, step=130)):
        scene.agreement = stage
        for number in range(SIZE):
            assert scene.asked == 0, "before the last one has answered"
            scene.answers(number, AnswerKind.ACCEPTED)
        assert scene.asked == 1
        assert scene.ranks.of(JOB, 1).have_answered(stage)
        scene.asked = 0


def test_a_thread_that_renders_a_page_forgets_no_process(scene: _Scene) -> None:
    def first() -> RankState:
        return next(state for state in scene.ranks.of(JOB, 1).states if state.process == "p0")

    scene.answers(0, AnswerKind.ACCEPTED)
    answered = first()
    worker = scene.workers.pop(0)
    with ThreadPoolExecutor(1) as thread:
        assert len(thread.submit(scene.ranks.of, JOB, 1).result().states) == SIZE - 1
    scene.workers[0] = worker
    assert first() == answered


def test_a_process_that_cannot_answer_is_not_waited_for(scene: _Scene) -> None:
    """It waits to join the next round, which is decided once the others have answered."""
    scene.workers[SIZE] = Worker("joiner", JOB, 1, Host("n2"), 0)
    scene.ranks.put_statement(scene.workers[SIZE], Statement())
    for number in range(SIZE):
        scene.answers(number, AnswerKind.ACCEPTED)
    assert scene.asked == 1


def test_the_next_processes_of_a_run_are_asked_before_they_have_said_what_they_agree_to() -> None:
    """A round of torchrun may change before their first step; without being asked, they would lose those since."""
    workers = {"first": Worker("first", JOB, 1, Host("n1"), 0)}
    ranks = RankStates(lambda _job: list(workers.values()), lambda _job: None, lambda _job: None)
    ranks.put_statement(workers["first"], AGREES)
    workers = {"second": Worker("second", JOB, 1, Host("n1"), 0)}
    for statement in (Statement(), Statement(purposes=frozenset())):
        ranks.put_statement(workers["second"], statement)
        [state] = ranks.of(JOB, 1).states
        assert state.purposes == {Purpose.RENDEZVOUS, Purpose.REGROUP}
    ranks.put_statement(workers["second"], Statement(purposes=frozenset({Purpose.STOP})))
    assert ranks.of(JOB, 1).states[0].purposes == {Purpose.STOP}


def test_of_a_commit_only_the_end_asks_for_a_decision(scene: _Scene) -> None:
    """That a rank will act needs none; that all have acted does."""
    scene.agreement = replace(POLL, step=120, committed=True)
    for kind, asked in ((AnswerKind.COMMITTED, 0), (AnswerKind.REACHED, 1)):
        for number in range(SIZE):
            scene.answers(number, kind)
        assert scene.asked == asked


def test_the_last_acknowledgement_asks_for_a_decision(scene: _Scene) -> None:
    """An earlier STOP's does not count, and a rank that has left since still does."""
    for number in range(SIZE):
        scene.ranks.acknowledged(scene.workers[number], 6)
    scene.asked = 0
    for number in range(SIZE):
        assert scene.asked == 0
        scene.ranks.acknowledged(scene.workers[number], 7)
    assert scene.asked == 1
    del scene.workers[5]
    assert scene.ranks.of(JOB, 1).have_acknowledged(7)


def test_a_process_that_is_gone_says_nothing(scene: _Scene) -> None:
    del scene.workers[5]
    ranks = scene.ranks.of(JOB, 1)
    assert (len(ranks.states), list(ranks.absent)) == (SIZE - 1, [5])


def test_a_process_that_never_said_anything_cannot_agree(scene: _Scene) -> None:
    scene.workers[SIZE] = Worker("old", JOB, 1, Host("n1"), None)
    assert not scene.ranks.of(JOB, 1).agree_to(Purpose.STOP)


def test_a_process_counts_with_its_present_rank(scene: _Scene) -> None:
    scene.workers[5] = replace(scene.workers[5], rank=SIZE)
    ranks = scene.ranks.of(JOB, 1)
    assert (ranks.states[5].rank, list(ranks.absent)) == (SIZE, [5])


def test_another_run_begins_anew(scene: _Scene) -> None:
    """And nobody of an earlier one speaks for it."""
    for worker in list(scene.workers.values()):
        scene.workers[worker.rank or 0] = replace(worker, run=2)
        scene.ranks.put_statement(replace(worker, run=2), AGREES)
    assert scene.ranks.of(JOB, 2).agree_to(Purpose.STOP)
    assert scene.ranks.of(JOB, 1) is NO_RANKS
    scene.answers(0, AnswerKind.DECLINED, run=1)
    assert scene.ranks.of(JOB, 2).states[0].answer is None


def test_a_job_whose_processes_do_not_agree_costs_nothing() -> None:
    scene = _Scene()
    other = Worker("p", JOB._replace(name=JobName("other")), 1, Host("n1"), 0)
    scene.ranks.put_statement(other, Statement(purposes=frozenset(), world_size=8))
    assert scene.ranks.of(other.job, 1) is NO_RANKS
    scene.ranks.forget_others([])
    assert scene.ranks.of(JOB, 1) is NO_RANKS


def test_the_time_of_a_step_is_estimated_until_it_is_measured(scene: _Scene) -> None:
    scene.answers(0, AnswerKind.DECLINED, step=100, at=T0)
    scene.answers(0, AnswerKind.DECLINED, step=104, at=T0 + 2)
    assert scene.ranks.of(JOB, 1).states[0].step_seconds == 0.5


def test_the_time_of_a_step_is_known_before_anybody_asks(scene: _Scene) -> None:
    """From what the rank says about itself; a report without it changes nothing."""
    scene.ranks.put_statement(scene.workers[0], Statement(step_seconds=0.5))
    scene.ranks.put_statement(scene.workers[0], Statement(world_size=SIZE))
    assert scene.ranks.of(JOB, 1).slowest_step == 0.5
    assert scene.asked == 0


def test_what_a_change_costs_is_known_after_the_processes_that_measured_it_are_gone(scene: _Scene) -> None:
    """The next processes have saved nothing yet, in the next round as in the next run."""
    answer = StepAnswer(epoch=1, at_step=None, kind=AnswerKind.DECLINED, step=100, at=T0)
    scene.ranks.put_statement(scene.workers[0], Statement(start_seconds=7.0, change_seconds=0.3))
    scene.ranks.answered(scene.workers[1], answer, Measurements(checkpoint_seconds=3.0))
    costs = ChangeCosts(checkpoint_seconds=3.0, start_seconds=7.0, change_seconds=0.3)
    assert scene.ranks.of(JOB, 1).costs == costs
    scene.workers = {0: Worker("later", JOB, 2, Host("n1"), 0)}
    scene.ranks.put_statement(scene.workers[0], replace(AGREES, start_seconds=9.0))
    assert scene.ranks.of(JOB, 2).costs == replace(costs, start_seconds=9.0)
    assert scene.ranks.of(JOB, 2).slowest_checkpoint == 3.0


def test_an_answer_to_an_earlier_attempt_comes_too_late(scene: _Scene) -> None:
    scene.agreement = replace(POLL, epoch=2)
    scene.answers(0, AnswerKind.DECLINED, step=7)
    scene.agreement = POLL
    scene.answers(0, AnswerKind.ACCEPTED, step=6)
    answer = scene.ranks.of(JOB, 1).states[0].answer
    assert answer is not None
    assert (answer.epoch, answer.step) == (2, 7)
