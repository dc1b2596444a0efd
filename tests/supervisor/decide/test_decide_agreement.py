"""All ranks stop, or save, after one agreed step: each stage, and what happens when ranks do not answer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from supervisor.decide.directives import JobDirectives
from supervisor.decide.policy import Policy
from supervisor.decide.ranks import Ranks, RankState
from supervisor.decide.registration import acknowledge
from supervisor.domain.agreement import AnswerKind, Purpose
from supervisor.domain.ids import Host
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Phase, SupervisedJob
from supervisor.domain.notice import NoticeClass
from supervisor.domain.order import ProcessDirective, ProcessDirectiveKind, SetHostList, StopProcesses, Worker
from tests.supervisor.decide.agreement_builders import SIZE, answering, present, rank_states, stopping_for
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    answered,
    decide,
    notice,
    noticed,
    observing,
    running_job,
    seeing,
    spec,
)

ACCEPTED, DECLINED, PASSED = AnswerKind.ACCEPTED, AnswerKind.DECLINED, AnswerKind.PASSED
COMMITTED, REACHED = AnswerKind.COMMITTED, AnswerKind.REACHED
STATES = rank_states()


def _running() -> SupervisedJob:
    """A job of exactly four hosts, one rank on each."""
    return running_job(spec(SIZE, SIZE), SIZE)


def _polled(states: tuple[RankState, ...] = STATES) -> SupervisedJob:
    return decide(_running(), stopping_for(states)).job


def _proposed(at: float = 0.1, step: int = 100) -> SupervisedJob:
    job = _polled()
    return decide(job, stopping_for(answering(STATES, present(job), DECLINED, at=at, step=step)), at).job


def _committed(at: float = 0.2) -> SupervisedJob:
    job = _proposed()
    return decide(job, stopping_for(answering(STATES, present(job), ACCEPTED, at=at)), at).job


def _told(job: SupervisedJob, rank: int = 0, number: int = 1) -> ProcessDirective:
    worker = Worker(f"p{rank}", job.id, 1, Host(f"n{number}"), rank)
    return JobDirectives.of(job, noticed(notice(4)), POLICY).directive(worker)


def test_the_ranks_are_polled_first() -> None:
    """The job goes on meanwhile: nobody is told to stop, and the launcher gets no other list."""
    job = decide(_running(), stopping_for(STATES))
    agreement = present(job.job)
    assert (job.job.decision.phase, job.job.decision.stop) == (Phase.RUNNING, None)
    assert (agreement.epoch, agreement.step, agreement.committed, agreement.run) == (1, None, False, 1)
    assert not any(isinstance(action, SetHostList) for action in job.plan.actions)
    assert _told(job.job).kind is ProcessDirectiveKind.RUN
    assert _told(job.job).agreement == agreement
    assert job.job.decision.reason.endswith("(minimum 4): stopping. All ranks are to stop at one step.")


def test_the_proposed_step_is_ahead_of_every_rank_for_two_rounds() -> None:
    """The round took 0.1 s and a step takes 0.1 s, so the furthest rank is two steps further when the commit comes."""
    job = _polled()
    states = answering(STATES, present(job), DECLINED, at=0.1, step=100)
    ahead = answering(STATES[3:], present(job), DECLINED, at=0.1, step=105)
    agreement = present(decide(job, stopping_for((*states[:3], *ahead)), 0.1).job)
    assert (agreement.epoch, agreement.step, agreement.committed) == (1, 105 + 2 + 1, False)


@pytest.mark.parametrize(("step_seconds", "ahead"), [(10.0, 1), (0.81, 1), (0.79, 2), (0.2, 2)])
def test_of_long_steps_the_one_that_is_under_way_is_proposed(step_seconds: float, ahead: int) -> None:
    """The commit comes in 0.2 s. A job that waited for the step after it would lose it where the lead is short."""
    states = tuple(replace(state, step_seconds=step_seconds) for state in STATES)
    job = _polled(states)
    facts = stopping_for(answering(states, present(job), DECLINED, at=0.1, step=100))
    assert present(decide(job, facts, 0.1).job).step == 100 + ahead


def test_a_rank_that_answered_long_ago_is_expected_further_on() -> None:
    job = _polled()
    early = answering(STATES[:1], present(job), DECLINED, at=0.1, step=100)
    late = answering(STATES[1:], present(job), DECLINED, at=1.1, step=100)
    step = present(decide(job, stopping_for((*early, *late)), 1.1).job).step
    assert step == 100 + 32 + 1  # 1 s since its answer and twice 1.1 s for the rounds.


def test_the_step_is_committed_once_all_have_accepted() -> None:
    job = _proposed()
    facts = stopping_for((*answering(STATES[:3], present(job), ACCEPTED, at=0.2), STATES[3]))
    assert decide(job, facts, 0.2).job.decision == job.decision, "one has not answered"
    job = _committed()
    agreement, stop = present(job), job.decision.stop
    assert agreement.committed
    assert stop is not None
    assert (job.decision.phase, stop.generation, stop.run) == (Phase.STOPPING, job.decision.generation, 1)
    assert job.decision.reason.endswith(f"stopping. All ranks save after step {agreement.step}.")
    assert {_told(job, rank).kind for rank in range(SIZE)} == {ProcessDirectiveKind.STOP}
    assert _told(job, 3).agreement == agreement


@pytest.mark.parametrize("kind", [DECLINED, PASSED])
def test_a_rank_that_is_too_far_moves_the_step(kind: AnswerKind) -> None:
    """With another epoch, and at once: all have just named their steps."""
    job = _proposed()
    before = present(job)
    late = answering(STATES[:1], before, kind, at=0.2, step=110)
    facts = stopping_for((*late, *answering(STATES[1:], before, ACCEPTED, at=0.2)))
    after = present(decide(job, facts, 0.2).job)
    assert (after.epoch, after.committed) == (before.epoch + 1, False)
    assert after.step is not None
    assert after.step > 110


@pytest.mark.parametrize(("behind", "is_named"), [(40, True), (88, False)])
def test_ranks_that_count_different_steps_are_named(behind: int, *, is_named: bool) -> None:
    """One that asks half as often never reaches the step at which the others wait for it. Rank 0 saves alone.

    Steps of 0.1 s differ by 50 at most while answers travel.
    """
    job = _polled()
    asked = present(job)
    slow = answering(STATES[1:2], asked, DECLINED, at=0.1, step=behind)
    others = answering((STATES[0], *STATES[2:]), asked, DECLINED, at=0.1)
    decision = decide(job, stopping_for((*others, *slow)), 0.1).job.decision
    said = "There is no agreed step, as rank 1 counts 40 steps and rank 0 counts 100: rank 0 saves alone."
    assert decision.reason.endswith(said) is is_named
    assert (decision.phase is Phase.STOPPING) is is_named
    together = [replace(state, collective=True) for state in (*others, *slow)]
    assert decide(job, stopping_for(together), 0.1).job.decision.agreement is not None


def test_a_round_without_all_answers_is_followed_by_a_poll() -> None:
    job = _proposed()
    facts = stopping_for((*answering(STATES[:3], present(job), ACCEPTED, at=0.2), STATES[3]))
    waiting = decide(job, facts, 1.0)
    assert waiting.plan.wake_at == T0 + 2.1
    after = present(decide(job, facts, 2.1).job)
    assert (after.epoch, after.step, after.began) == (2, None, T0)


def test_the_time_out_names_who_did_not_answer_and_rank_zero_stops_alone() -> None:
    states = (*STATES[:3], replace(STATES[3], unread_seconds=31.4))
    job = _polled(states)
    facts = stopping_for((*answering(STATES[:3], present(job), DECLINED, at=0.1), states[3]))
    job = decide(job, facts, 10).job
    assert (job.decision.phase, job.decision.agreement) == (Phase.STOPPING, None)
    assert job.decision.reason.endswith(
        "There is no agreed step, as rank 3 (flag not read for 31 s) did not answer: rank 0 saves alone."
    )
    assert [_told(job, rank).kind for rank in (0, 1)] == [ProcessDirectiveKind.STOP, ProcessDirectiveKind.RUN]


def test_ranks_that_are_not_connected_are_named() -> None:
    job = _polled(STATES[:2])
    facts = stopping_for(answering(STATES[:2], present(job), DECLINED, at=0.1))
    assert decide(job, facts, 1).job.decision == job.decision
    assert "as rank 2, rank 3 did not connect: rank 0" in decide(job, facts, 10).job.decision.reason


def test_little_time_shortens_the_time_out() -> None:
    """Rank 0 keeps the time to save alone, and a quarter of a very short lead is for the ranks."""
    slow = tuple(replace(state, checkpoint_seconds=3.0) for state in STATES)
    policy = Policy(just_in_time=False)
    job = decide(_running(), stopping_for(slow, left=14), policy=policy).job
    assert decide(job, stopping_for(slow, left=14), 5.9, policy).job.decision.phase is Phase.RUNNING
    assert decide(job, stopping_for(slow, left=14), 6, policy).job.decision.phase is Phase.STOPPING
    job = decide(_running(), stopping_for(slow, left=4)).job
    assert decide(job, stopping_for(slow, left=4), 0.9).job.decision.phase is Phase.RUNNING
    assert decide(job, stopping_for(slow, left=4), 1).job.decision.phase is Phase.STOPPING


@pytest.mark.parametrize(
    "states",
    [
        (),
        rank_states(purposes=frozenset()),
    ],
    ids=["unknown", "none-does"],
)
def test_ranks_that_cannot_all_agree_stop_as_ever(states: tuple[RankState, ...]) -> None:
    """The decision is that of a job whose processes have never heard of an agreement."""
    job, plain = _polled(states), decide(_running(), stopping_for(())).job
    assert job == plain
    assert job.decision.phase is Phase.STOPPING


def test_one_rank_that_cannot_agree_has_rank_0_save_alone() -> None:
    """The reason names the rank, as the others could have stopped with rank 0."""
    job = _polled((*STATES[:3], replace(STATES[3], purposes=frozenset({Purpose.CHECKPOINT}))))
    assert job.decision.phase is Phase.STOPPING
    assert job.decision.agreement is None
    assert "rank 3 cannot agree" in job.decision.reason


def test_a_process_that_cannot_agree_and_joins_in_the_middle_ends_it() -> None:
    job = _proposed()
    other = RankState(process="other", rank=None)
    decision = decide(job, stopping_for((*STATES, other)), 0.2).job.decision
    assert decision.phase is Phase.STOPPING
    assert decision.reason.endswith("as process other cannot agree to one: rank 0 saves alone.")


@pytest.mark.parametrize("stage", [_polled, _proposed])
def test_a_withdrawn_notice_takes_everything_back_before_the_commit(stage: Callable[[], SupervisedJob]) -> None:
    decision = decide(stage(), replace(stopping_for(STATES), notices={}), 0.3).job.decision
    assert (decision.phase, decision.agreement, decision.stop) == (Phase.RUNNING, None, None)
    assert decision.reason == "Run 1 is running on 4 hosts."
    again = present(decide(replace(_running(), decision=decision), stopping_for(STATES), 1).job)
    assert again.epoch == 2, "no epoch is used twice"


def test_a_commit_is_final() -> None:
    job = _committed()
    assert decide(job, replace(stopping_for(STATES), notices={}), 0.3).job.decision == job.decision


def test_with_time_the_ranks_train_on() -> None:
    """As long as a checkpoint of 20 s, the margin of 5 s, four steps and two rounds fit; then they are asked anew."""
    states = tuple(replace(state, checkpoint_seconds=20.0) for state in STATES)
    job = decide(_running(), stopping_for(states)).job
    facts = stopping_for(answering(states, present(job), DECLINED, at=0.1))
    waiting, planned = decide(job, facts, 0.1)
    assert waiting.decision.phase is Phase.RUNNING
    assert waiting.decision.reason.endswith("All ranks stop at one step shortly before; until then they train on.")
    assert planned.wake_at == pytest.approx(T0 + 300 - 5 - 20 - 0.4 - 4)
    assert decide(waiting, facts, 200).job.decision == waiting.decision
    asked = decide(waiting, facts, 270.7).job
    assert (present(asked).epoch, present(asked).step, present(asked).began) == (2, None, T0 + 270.7)
    later = stopping_for(answering(states, present(asked), DECLINED, at=270.8, step=2000))
    assert present(decide(asked, later, 270.8).job).step == 2000 + 2 + 1


@pytest.mark.parametrize("checkpoint", [20.0000004, 20.0000006, 20 + 1 / 3, 20 + 2 / 3])
def test_at_that_very_instant_they_are_asked_anew_once(checkpoint: float) -> None:
    """Whatever part of a microsecond it falls on, which the stored time of the attempt does not have."""
    states = tuple(replace(state, checkpoint_seconds=checkpoint) for state in STATES)
    job = decide(_running(), stopping_for(states)).job
    facts = stopping_for(answering(states, present(job), DECLINED, at=0.1))
    waiting, planned = decide(job, facts, 0.1)
    assert planned.wake_at is not None
    assert present(decide(waiting, facts, planned.wake_at - T0).job).epoch == 2


@pytest.mark.parametrize(
    ("policy", "checkpoint"), [(Policy(just_in_time=False), 20.0), (POLICY, None)], ids=["switched-off", "unknown"]
)
def test_otherwise_they_stop_at_once(policy: Policy, checkpoint: float | None) -> None:
    states = tuple(replace(state, checkpoint_seconds=checkpoint) for state in STATES)
    job = decide(_running(), stopping_for(states), policy=policy).job
    facts = stopping_for(answering(states, present(job), DECLINED, at=0.1))
    assert present(decide(job, facts, 0.1, policy).job).step is not None


def test_a_job_that_is_ended_stops_at_once() -> None:
    """It has no deadline that would leave time."""
    states = tuple(replace(state, checkpoint_seconds=20.0) for state in STATES)
    facts = replace(seeing(), ranks=Ranks(states))
    job = decide(observing(_running(), ending=True), facts).job
    facts = replace(facts, ranks=Ranks(answering(states, present(job), DECLINED, at=0.1)))
    assert present(decide(job, facts, 0.1).job).step is not None


def test_every_rank_acknowledges() -> None:
    """Rank 0's answer alone suspends nothing, as long as others save."""
    job = answered(_committed(), step=103)
    generation = _generation(job)
    saved = tuple(replace(state, acknowledged=generation) for state in STATES[:3])
    waiting = decide(job, stopping_for((*saved, STATES[3]), acknowledged=range(3)), 1)
    assert waiting.job.decision == job.decision
    all_saved = (*saved, replace(STATES[3], acknowledged=generation))
    decision = decide(job, stopping_for(all_saved, acknowledged=range(4)), 1).job.decision
    assert decision.phase is Phase.SUSPENDED
    assert decision.reason.endswith("All ranks have saved a checkpoint of step 103.")
    assert decide(job, stopping_for(saved, acknowledged=range(4)), 1).job.decision.phase is Phase.SUSPENDED
    assert decide(job, stopping_for(saved, acknowledged=range(3)), 1).job.decision.phase is Phase.STOPPING


def test_a_stop_without_all_answers_names_the_ranks_that_gave_none() -> None:
    """And the checkpoint from which the job resumes, if it is known."""
    job = answered(_committed(), step=103)
    saved = tuple(replace(state, acknowledged=_generation(job)) for state in STATES)
    silent = (saved[0], replace(STATES[1], unread_seconds=12.0), saved[2])
    facts = replace(stopping_for(silent, acknowledged=(0, 2)), saved_step=90)
    decision = decide(job, facts, 3600).job.decision
    assert decision.phase is Phase.SUSPENDED
    assert decision.reason.endswith(
        "Rank 1 (flag not read for 12 s), rank 3 (not connected) did not answer in time; "
        "the job will resume from the checkpoint of step 90."
    )


@pytest.mark.parametrize(("step", "counts"), [(102, False), (103, True), (104, True), (None, True)])
def test_only_a_checkpoint_of_the_agreed_step_or_after_it_answers(step: int | None, *, counts: bool) -> None:
    """An older SDK stamps an older one too. Ranks that ask only after some steps stop at the next of those."""
    job = _committed()
    assert present(job).step == 103
    assert (answered(job, step=step).observed.acknowledgement is not None) is counts


def _reported(job: SupervisedJob, rank: int, kind: AcknowledgementKind, **changes: Any) -> SupervisedJob:
    """Rank `rank` of a job whose saves need all ranks has answered the STOP."""
    worker = Worker(f"p{rank}", job.id, 1, Host(f"n{rank + 1}"), rank)
    answer = Acknowledgement(run=1, generation=_generation(job), kind=kind, step=103, at=T0, rank=rank)
    changed = acknowledge(job, worker, replace(answer, **changes), collective=True)
    assert changed is not None
    return changed


def test_a_part_that_could_not_be_saved_counts_more_than_rank_0s() -> None:
    """Until the rank that has failed saves it after all."""
    saved, failed = AcknowledgementKind.SAVED, AcknowledgementKind.FAILED
    job = _reported(_reported(_committed(), 0, saved), 1, failed, error="a full disk")
    for rank, kind in ((2, saved), (0, saved), (2, AcknowledgementKind.LEFT)):
        job = _reported(job, rank, kind)
    answer = job.observed.acknowledgement
    assert answer is not None
    assert (answer.kind, answer.rank, answer.error, answer.has_left) == (failed, 1, "a full disk", False)
    left = _reported(job, 1, AcknowledgementKind.LEFT).observed.acknowledgement
    assert left is not None
    assert (left.kind, left.has_left) == (failed, True)
    states = tuple(replace(state, acknowledged=_generation(job)) for state in STATES)
    reason = decide(job, stopping_for(states, acknowledged=range(4)), 1).job.decision.reason
    assert "All ranks save after step 103. Rank 1 could not save: a full disk; " in reason
    again = _reported(job, 1, saved).observed.acknowledgement
    assert again is not None
    assert again.kind is saved


def test_a_failure_of_another_rank_does_not_count_where_rank_0_saves_alone() -> None:
    job = _committed()
    worker = Worker("p1", job.id, 1, Host("n2"), 1)
    answer = Acknowledgement(
        run=1, generation=_generation(job), kind=AcknowledgementKind.FAILED, step=103, at=T0, rank=1
    )
    assert acknowledge(job, worker, answer) is job


def _generation(job: SupervisedJob) -> int:
    assert job.decision.stop is not None
    return job.decision.stop.generation


def test_a_supervisor_that_did_not_hear_the_others_waits_for_them_only_so_long() -> None:
    """What they said before it was started is lost; rank 0's answer is stored."""
    job = _committed()
    answer = Acknowledgement(run=1, generation=_generation(job), kind=AcknowledgementKind.SAVED, step=103, at=T0 + 20)
    job = observing(job, acknowledgement=answer)
    for states in ((), STATES):
        facts = stopping_for(states, since=T0 + 25)
        assert decide(job, facts, 34.9).job.decision.phase is Phase.STOPPING
        assert decide(job, facts, 26).plan.wake_at == T0 + 35
        assert decide(job, facts, 35).job.decision.phase is Phase.SUSPENDED


@pytest.mark.parametrize("stage", [_polled, _proposed])
def test_another_leader_continues(stage: Callable[[], SupervisedJob]) -> None:
    """It has heard nothing yet, and gives the ranks their time to return."""
    job, since = stage(), T0 + 60
    facts = stopping_for((), since=since)
    assert decide(job, facts, 61.9).job.decision == job.decision
    assert present(decide(job, facts, 62).job).epoch == 2
    assert decide(job, facts, 69.9).job.decision.phase is Phase.RUNNING
    late = decide(job, facts, 70).job.decision
    assert late.phase is Phase.STOPPING
    assert late.reason.endswith("as no process is connected: rank 0 saves alone.")


def test_another_leader_commits_what_the_last_one_proposed() -> None:
    job = _proposed()
    facts = stopping_for(answering(STATES, present(job), ACCEPTED, at=60.5), since=T0 + 60)
    assert present(decide(job, facts, 60.5).job).committed


def test_a_commit_that_came_too_late_is_followed_by_another_attempt() -> None:
    """Its leader died before it was sent, so the ranks went on. They still stop, and nobody acts meanwhile."""
    job = _committed()
    facts = stopping_for(answering(STATES, present(job), PASSED, at=60.5, step=700), since=T0 + 60)
    polled = decide(job, facts, 60.5).job
    assert (polled.decision.phase, present(polled).epoch, present(polled).step) == (Phase.STOPPING, 2, None)
    assert {_told(polled, rank).kind for rank in range(SIZE)} == {ProcessDirectiveKind.RUN}
    states = answering(STATES, present(polled), DECLINED, at=60.6, step=701)
    proposed = decide(polled, stopping_for(states, since=T0 + 60), 60.6).job
    states = answering(STATES, present(proposed), ACCEPTED, at=60.7, step=701)
    again = decide(proposed, stopping_for(states, since=T0 + 60), 60.7).job
    assert present(again).committed
    assert {_told(again, rank).kind for rank in range(SIZE)} == {ProcessDirectiveKind.STOP}


def test_epochs_that_ranks_know_from_a_lost_store_are_not_used_again() -> None:
    assert present(_polled(rank_states(epoch=41))).epoch == 42


COLLECTIVE = rank_states(collective=True)


def test_ranks_that_save_together_are_asked_until_the_last_moment() -> None:
    """One of them alone would hang, so none is told to stop before the leave margin; then all exit."""
    job = _polled(COLLECTIVE)
    facts = stopping_for(COLLECTIVE)
    job = decide(job, facts, 10).job
    assert (job.decision.phase, present(job).step) == (Phase.STOPPING, None)
    assert job.decision.reason.endswith("did not answer: asking again, as all ranks save together.")
    assert {_told(job, rank).kind for rank in range(SIZE)} == {ProcessDirectiveKind.RUN}
    for at in (25, 100, 297.9):
        job = decide(job, facts, at).job
        assert (job.decision.phase, present(job).committed) == (Phase.STOPPING, False)
    last = decide(job, facts, 298).job
    assert last.decision.agreement is None
    assert last.decision.reason.endswith("Time is up: all ranks exit, and none can save.")
    assert {_told(last, rank).kind for rank in range(SIZE)} == {ProcessDirectiveKind.STOP}


def test_a_stop_that_was_decided_without_them_becomes_an_agreed_one() -> None:
    """As when a supervisor has just been started: ranks that save together do nothing at a STOP for rank 0."""
    job = decide(_running(), stopping_for(())).job
    assert job.decision.phase is Phase.STOPPING
    asked = decide(job, stopping_for(COLLECTIVE), 1).job
    assert (asked.decision.phase, present(asked).step) == (Phase.STOPPING, None)
    assert decide(job, stopping_for(STATES), 1).job.decision == job.decision


def test_pods_are_only_told_at_the_last_moment() -> None:
    """Processes without a stream have agreed to nothing; those with one stop at their step."""
    job = _committed()
    assert decide(job, stopping_for(STATES), 297.9).job.decision == job.decision
    late = decide(job, stopping_for(STATES), 298)
    assert late.job.decision.stop is not None
    assert late.job.decision.stop.everyone
    assert not any(isinstance(action, StopProcesses) for action in late.plan.actions), "stand-alone has no pods"


def test_a_run_that_ends_in_the_middle_is_suspended() -> None:
    job = observing(_proposed(), running=False, exit_code=1)
    assert decide(job, stopping_for(STATES), 0.3).job.decision.phase is Phase.SUSPENDED


def test_another_run_agrees_anew() -> None:
    """What the processes of the last run have agreed on does not concern those of the next one."""
    job = observing(_proposed(), run=2)
    agreement = present(decide(job, stopping_for(STATES), 0.3).job)
    assert (agreement.run, agreement.epoch, agreement.step) == (2, 2, None)


HINT = replace(notice(4, left=None), notice_class=NoticeClass.HINT)


def _asked() -> SupervisedJob:
    return decide(_running(), replace(seeing(ahead=[HINT]), ranks=Ranks(STATES))).job


def _saving(kind: AnswerKind = ACCEPTED) -> SupervisedJob:
    job, facts = _asked(), replace(seeing(ahead=[HINT]), ranks=Ranks(STATES))
    for answer, at in ((DECLINED, 0.1), (kind, 0.2)):
        ranks = Ranks(answering(STATES, present(job), answer, at=at))
        job = decide(job, replace(facts, ranks=ranks), at).job
    return job


def test_a_checkpoint_is_agreed_on_as_well() -> None:
    """Until the commit nobody is asked to save; then all are, at one step, and the run continues."""
    job = _asked()
    assert (present(job).purpose, present(job).step) == (Purpose.CHECKPOINT, None)
    assert _told(job, number=1).kind is ProcessDirectiveKind.RUN
    saving = _saving()
    assert saving.decision.phase is Phase.RUNNING
    assert present(saving).committed
    directive = JobDirectives.of(saving, {}, POLICY).directive(Worker("p1", saving.id, 1, Host("n1"), 1))
    assert (directive.kind, directive.agreement) == (ProcessDirectiveKind.CHECKPOINT, present(saving))


def test_a_checkpoint_without_an_agreement_is_asked_for_as_ever() -> None:
    job = decide(_asked(), replace(seeing(ahead=[HINT]), ranks=Ranks(STATES)), 10).job
    assert job.decision.agreement is None
    directive = JobDirectives.of(job, {}, POLICY).directive(Worker("p1", job.id, 1, Host("n1"), 1))
    assert (directive.kind, directive.agreement) == (ProcessDirectiveKind.CHECKPOINT, None)


def test_a_stop_waits_for_a_checkpoint_that_ranks_have_begun() -> None:
    """A rank that gave its checkpoint up for the stop would leave the others hanging in theirs."""
    job = _saving()
    begun = answering(STATES[:1], present(job), REACHED, at=0.3)
    facts = stopping_for((*begun, *answering(STATES[1:], present(job), COMMITTED, at=0.3)))
    waiting, planned = decide(job, facts, 0.3)
    assert waiting.decision == job.decision
    assert planned.wake_at == T0 + 0.2 + POLICY.agreement_timeout_seconds
    for done, at in ((answering(STATES, present(job), REACHED, at=0.4), 0.4), (STATES, 10.2)):
        assert present(decide(job, stopping_for(done), at).job).purpose is Purpose.STOP


def test_a_stop_takes_the_place_of_a_checkpoint_that_is_not_committed() -> None:
    job = decide(_asked(), stopping_for(STATES), 0.1).job
    assert (present(job).purpose, present(job).epoch) == (Purpose.STOP, 2)


@pytest.mark.parametrize("seconds", [5e-324, 0.0])
def test_a_rank_that_measures_no_time_for_a_step_stops_no_decision(seconds: float) -> None:
    """A process measures the time itself, and says what it likes; the job then agrees on some later step."""
    states = rank_states(step_seconds=seconds)
    job = _polled(states)
    for at in (0.1, 0.2):
        answers = answering(states, present(job), DECLINED, at=at, step=2**53)
        job = decide(job, stopping_for(answers), at + 0.05).job
    assert present(job).step == 2**53


def test_a_claimed_size_costs_no_time_until_ranks_are_named() -> None:
    """The number of ranks is a claim of one process; the first one that is absent decides."""
    ranks = Ranks(rank_states(world_size=10**12))
    assert not ranks.have_answered(present(_polled()))
    assert not ranks.have_acknowledged(1)


def test_no_step_is_agreed_on_without_rank_0_where_the_number_of_ranks_is_unknown() -> None:
    """It may train before it is connected, and would have passed a step that the others agreed on meanwhile."""
    others = rank_states(world_size=None)[1:]
    job = _polled(others)
    facts = stopping_for(answering(others, present(job), DECLINED, at=0.1))
    waiting = decide(job, facts, 0.2).job
    assert waiting.decision == job.decision
    assert "as rank 0 did not connect: rank 0" in decide(job, facts, 10).job.decision.reason
    whole = answering(rank_states(world_size=None), present(job), DECLINED, at=0.3)
    assert present(decide(waiting, stopping_for(whole), 0.4).job).step is not None
