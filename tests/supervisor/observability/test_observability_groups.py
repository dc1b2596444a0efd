"""The recent groups of reclaims, from decisions of the real `plan`."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import AcknowledgementKind, Phase, RequestKind, SupervisedJob, UserRequest
from supervisor.domain.notice import OPERATOR, SIMULATED, ReclaimNotice
from supervisor.domain.order import Worker
from supervisor.observability.groups import MAX_GROUPS, DecidedGroup, DecidedGroups, GroupCause, GroupOutcome
from supervisor.observability.history import PhaseTracker
from supervisor.observability.journal import JobChanged, JobForgotten
from tests.supervisor.decide.decide_builders import (
    METADATA,
    POLICY,
    T0,
    answered,
    decide,
    hosts,
    notice,
    noticed,
    obeyed,
    observing,
    running_job,
    seeing,
    spec,
    suspended_job,
    waiting_job,
)


class GroupedLife:
    """A job's decisions one after another, told to groups and phases as the journal would."""

    def __init__(self, job: SupervisedJob, *notices: ReclaimNotice) -> None:
        self.job = job
        self.noticed = noticed(*notices)
        self.groups = DecidedGroups(self.of, POLICY)
        self.phases = PhaseTracker()

    def of(self, _name: JobName) -> Mapping[Host, ReclaimNotice]:
        return self.noticed

    def becomes(self, job: SupervisedJob, at: float) -> None:
        for listener in (self.groups, self.phases):
            listener.on_change(JobChanged(self.job, job, T0 + at))
        self.job = job

    def decided(self, at: float) -> None:
        """As `plan` would."""
        self.becomes(decide(self.job, seeing(self.noticed), at).job, at)

    def only(self) -> DecidedGroup:
        (group,) = self.groups.all()
        return group


def stopped() -> GroupedLife:
    """Six hosts of which four are needed; three will be gone, from the first second on."""
    life = GroupedLife(running_job(spec(4)), *(notice(number, left=60.0 + number) for number in (1, 2, 3)))
    life.decided(2.0)
    return life


def test_a_change_of_exclusions_is_one_group() -> None:
    """With what was newly excluded, by whom it was announced, and how long the decision took."""
    life = GroupedLife(running_job(spec(3)), notice(1), notice(2, seen=T0 + 1))
    life.decided(1.0)
    life.decided(5.0)
    group = life.only()
    assert (group.outcome, group.subjects, group.sources) == (GroupOutcome.SHRUNK, ("n1", "n2"), (METADATA,))
    assert (group.noticed_at, group.at, group.deadline) == (T0, T0 + 5, T0 + 300)
    assert group.reason == life.job.decision.reason
    assert group.closed


def test_a_second_change_holds_only_what_is_new() -> None:
    life = GroupedLife(running_job(spec(3)), notice(1))
    life.decided(0.0)
    life.decided(5.0)
    life.noticed = noticed(notice(1), notice(2, seen=T0 + 10))
    life.decided(10.0)
    life.decided(15.0)
    assert [group.subjects for group in life.groups.all()] == [("n2",), ("n1",)]


def test_a_stop_is_followed_to_its_end() -> None:
    """Rank 0's answer, its margin, and how long the job was suspended."""
    life = stopped()
    assert (life.only().outcome, life.only().subjects) == (GroupOutcome.STOPPED, ("n1", "n2", "n3"))
    life.becomes(answered(life.job, step=41), 3.0)
    life.decided(3.5)
    answer = life.only().acknowledgement
    assert answer is not None
    assert (answer.step, life.only().deadline) == (41, T0 + 61)
    assert (life.only().suspended_at, life.only().closed) == (T0 + 3.5, False)
    resuming = replace(life.job, decision=replace(life.job.decision, phase=Phase.RESUMING))
    life.becomes(resuming, 50.0)
    assert not life.only().closed
    life.becomes(replace(resuming, decision=replace(resuming.decision, phase=Phase.RUNNING)), 60.0)
    assert (life.only().resumed_at, life.only().closed) == (T0 + 60, True)


def test_a_deadline_that_drifted_is_the_one_the_margin_counts_to() -> None:
    """It is looked at again when rank 0 has answered."""
    life = stopped()
    life.noticed = noticed(*(notice(number, left=30.0) for number in (1, 2, 3)))
    life.becomes(answered(life.job), 3.0)
    assert life.only().deadline == T0 + 30


def test_an_answer_to_something_else_is_none() -> None:
    """One of an earlier generation is known already when the STOP is decided."""
    early = answered(decide(running_job(spec(4)), seeing(noticed(notice(1), notice(2), notice(3)))).job)
    answer = early.observed.acknowledgement
    assert answer is not None
    life = GroupedLife(
        observing(running_job(spec(4)), acknowledgement=replace(answer, generation=answer.generation - 3)),
        *(notice(number) for number in (1, 2, 3)),
    )
    life.decided(2.0)
    assert life.only().acknowledgement is None


def test_a_run_that_ends_before_the_stop_was_heard_of_is_a_stop_all_the_same() -> None:
    job = running_job(spec(4))
    life = GroupedLife(job, notice(1), notice(2), notice(3))
    life.becomes(replace(job, decision=replace(job.decision, phase=Phase.SUSPENDED, generation=7)), 1.0)
    assert (life.only().outcome, life.only().suspended_at) == (GroupOutcome.STOPPED, T0 + 1)


def test_a_try_that_fails_is_no_group() -> None:
    """A job that could not resume is suspended again, and nothing was taken from it."""
    job = suspended_job()
    resuming = replace(job, decision=replace(job.decision, phase=Phase.RESUMING))
    life = GroupedLife(resuming)
    life.becomes(replace(job, decision=replace(job.decision, failed_resumes=job.decision.failed_resumes + 1)), 5.0)
    assert life.groups.all() == ()


def test_workers_that_went_without_a_word_have_no_notice() -> None:
    job = observing(running_job(spec(4)), hosts=hosts(1, 2, 3))
    life = GroupedLife(job)
    life.decided(0.0)
    life.decided(POLICY.lost_grace_seconds + 1)
    group = life.only()
    assert (group.outcome, group.sources, group.noticed_at, group.deadline) == (GroupOutcome.STOPPED, (), None, None)


@pytest.mark.parametrize("phase", [Phase.TIMED_OUT, Phase.FINISHED])
def test_a_suspension_may_end_otherwise(phase: Phase) -> None:
    life = stopped()
    life.becomes(answered(life.job), 3.0)
    life.decided(3.5)
    life.becomes(replace(life.job, decision=replace(life.job.decision, phase=phase)), 9.0)
    assert life.only().resumed_at == T0 + 9


def test_a_job_that_is_forgotten_is_not_suspended_for_ever() -> None:
    life = stopped()
    life.becomes(answered(life.job), 3.0)
    life.decided(3.5)
    life.groups.on_change(JobForgotten(life.job, T0 + 20))
    assert life.only().resumed_at == T0 + 20


def test_what_is_kept_is_bounded() -> None:
    life = GroupedLife(running_job(spec(3)))
    for number in range(MAX_GROUPS + 5):
        decision = replace(life.job.decision, exclusions=hosts(number), generation=number)
        life.becomes(replace(life.job, decision=decision), float(number))
    kept = life.groups.all()
    assert len(kept) == MAX_GROUPS
    assert kept[0].subjects == (f"n{MAX_GROUPS + 4}",)


def since(life: GroupedLife) -> float | None:
    return life.phases.since(life.job)


def test_a_phase_begins_when_it_was_heard_of() -> None:
    life = stopped()
    life.becomes(obeyed(life.job), 4.0)
    assert since(life) == T0 + 2


def test_what_began_before_is_known_only_where_the_decision_says_it() -> None:
    stopping, fresh = stopped().job, PhaseTracker()
    assert fresh.since(stopping) == T0 + 2
    assert fresh.since(running_job()) is None


def test_a_job_that_is_forgotten_has_no_phase() -> None:
    phases, job = PhaseTracker(), waiting_job()
    phases.on_change(JobChanged(None, job, T0))
    assert phases.since(job) == T0
    phases.on_change(JobForgotten(job, T0 + 1))
    assert phases.since(job) is None


def test_a_second_stop_has_the_answers_to_itself() -> None:
    """A job that is stopped while it resumes has two groups, and the first is over."""
    life = stopped()
    life.decided(120.0)
    assert life.job.decision.phase is Phase.SUSPENDED
    first = life.only()
    resuming = replace(life.job.decision, phase=Phase.RESUMING, run=2, hosts=hosts(1, 2, 3, 4, 5, 6))
    life.becomes(observing(replace(life.job, decision=resuming), run=2, running=True), 130.0)
    life.noticed = noticed(*(notice(number, seen=T0 + 140) for number in (4, 5, 6)))
    life.decided(140.0)
    life.becomes(answered(life.job), 141.0)
    second, known = life.groups.all()
    assert (known.generation, known.acknowledgement, known.resumed_at) == (first.generation, None, T0 + 140)
    assert second.acknowledgement is not None


def rank(number: int, run: int) -> Worker:
    return Worker("process", running_job().id, run, Host("n4"), number)


def test_what_is_done_again_is_lost() -> None:
    """Between what rank 0 had saved and what rank 0 of the next run says first; nobody else's word counts."""
    life = stopped()
    life.becomes(answered(life.job, step=41), 3.0)
    life.decided(3.5)
    for worker, step in ((rank(0, 1), 30), (rank(1, 2), 30), (rank(0, 2), None)):
        life.groups.on_step(worker, step)
        assert life.only().steps_lost is None
    life.groups.on_step(rank(0, 2), 39)
    life.groups.on_step(rank(0, 2), 45)
    assert life.only().steps_lost == 2


def test_a_save_that_failed_is_told_and_what_it_cost() -> None:
    """Until another attempt succeeds."""
    life = stopped()
    life.becomes(answered(life.job, AcknowledgementKind.FAILED, step=987, error="a full disk"), 3.0)
    answer = life.only().acknowledgement
    assert answer is not None
    assert (answer.kind, answer.error) == (AcknowledgementKind.FAILED, "a full disk")
    life.groups.on_step(rank(0, 2), 900)
    assert life.only().steps_lost == 87
    life.becomes(answered(life.job, AcknowledgementKind.SAVED, step=987), 4.0)
    again = life.only().acknowledgement
    assert again is not None
    assert again.kind is AcknowledgementKind.SAVED


def test_a_run_that_goes_on_where_it_was_has_lost_nothing() -> None:
    life = stopped()
    life.becomes(answered(life.job, step=41), 3.0)
    life.groups.on_step(rank(0, 2), 44)
    assert life.only().steps_lost == 0


def test_a_later_job_of_the_name_says_nothing_of_an_earlier_one() -> None:
    life = stopped()
    life.becomes(answered(life.job, step=41), 3.0)
    life.groups.on_change(JobForgotten(life.job, T0 + 9))
    life.groups.on_step(rank(0, 2), 0)
    assert life.only().steps_lost is None


@pytest.mark.parametrize(
    ("source", "cause"),
    [(METADATA, GroupCause.RECLAIM), (SIMULATED, GroupCause.DRILL), (OPERATOR, GroupCause.DRAIN)],
)
def test_a_group_says_what_it_is_for(source: Source, cause: GroupCause) -> None:
    life = GroupedLife(running_job(spec(6)), replace(notice(1), source=source))
    life.decided(0)
    assert life.only().cause is cause


def test_a_stop_that_a_person_asked_for_is_no_reclaim() -> None:
    """Also while a host has a notice: the request decides."""
    asked = UserRequest(kind=RequestKind.SUSPEND, by="ann", reason="", at=T0)
    life = GroupedLife(observing(running_job(), request=asked), notice(1))
    life.decided(0)
    assert life.only().cause is GroupCause.PERSON
