"""The announced next step agrees with what `plan` does then."""

from dataclasses import replace

import pytest

from supervisor.decide.explanation import prospects
from supervisor.decide.plan import plan
from supervisor.domain.job import ELASTIC, Acknowledgement, AcknowledgementKind, Growth, Phase, Result, SupervisedJob
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    decide,
    first,
    notice,
    noticed,
    observing,
    running_job,
    seeing,
    spec,
    suspended_job,
    waiting_job,
)

_ALL = ELASTIC


def _said(job: SupervisedJob) -> str:
    return " / ".join(each.what for each in prospects(job))


def test_a_job_that_runs_undisturbed_just_goes_on() -> None:
    assert prospects(running_job()) == ()


def test_a_job_that_is_over_has_none() -> None:
    assert prospects(observing(waiting_job(), result=Result.FAILED)) == ()


def test_a_group_that_is_collected_is_left_out_when_it_says() -> None:
    doomed = seeing(noticed(notice(1)))
    collecting = decide(running_job(), doomed).job
    (prospect,) = prospects(collecting)
    assert "excluded in one change" in prospect.what
    assert prospect.at is not None
    assert plan(collecting, doomed, prospect.at - 0.01, POLICY).decision.exclusions == frozenset()
    shrinking = decide(collecting, doomed, at=prospect.at - T0).job
    assert shrinking.decision.exclusions == first(1)
    assert "launcher has to confirm" in _said(shrinking)
    in_place = observing(shrinking, applied=shrinking.decision.generation)
    assert "return if their notices are withdrawn" in _said(in_place)


def test_a_job_that_is_being_ended_is_not_started_again() -> None:
    stopping = decide(observing(running_job(), ending=True), seeing()).job
    assert _said(stopping).endswith(
        "as soon as rank 0 has answered / its launcher ends the job, which is not started again"
    )
    assert _said(observing(suspended_job(), ending=True)) == "its launcher ends the job, which is not started again"


def test_a_stop_waits_for_rank_zero() -> None:
    stopping = decide(running_job(spec(6)), seeing(noticed(notice(1)))).job
    assert stopping.decision.phase is Phase.STOPPING
    assert _said(stopping).startswith("rank 0 was told to stop and to save a checkpoint")
    stop = stopping.decision.stop
    assert stop is not None
    answer = Acknowledgement(run=1, generation=stop.generation, kind=AcknowledgementKind.SAVED, step=3, at=T0)
    assert _said(observing(stopping, acknowledgement=answer)).startswith("rank 0 has answered")
    old = replace(answer, generation=stop.generation - 1)
    assert _said(observing(stopping, acknowledgement=old)).startswith("rank 0 was told")


def test_a_suspended_job_times_out_when_it_says() -> None:
    job = suspended_job(spec(max_wait=60))
    waits, ends = prospects(job)
    assert waits.what.startswith("it resumes when at least 3 of its hosts")
    assert ends.at == T0 + 60
    assert plan(job, seeing(), T0 + 59, POLICY).decision.phase is Phase.SUSPENDED
    assert plan(job, seeing(), T0 + 60, POLICY).decision.phase is Phase.TIMED_OUT


def test_a_run_that_goes_on_has_to_end_before_another_one_starts() -> None:
    job = suspended_job()
    going_on = observing(replace(job, decision=replace(job.decision, hosts=first(6))), running=True)
    assert _said(going_on).startswith("run 1 has to end first")


@pytest.mark.parametrize(
    ("job", "part"),
    [
        (waiting_job(), "it starts when at least 3"),
        (waiting_job(replace(spec(), capabilities=_ALL)), "its operator starts the first run"),
        (
            suspended_job(replace(spec(), capabilities=_ALL)),
            "nodes without a notice have room for at least 3",
        ),
        (suspended_job(replace(spec(), least_to_start=5)), "at least 5 of its hosts"),
    ],
)
def test_what_a_job_waits_for(job: SupervisedJob, part: str) -> None:
    assert part in _said(job)


def test_a_growth_is_given_up_when_it_says() -> None:
    job = running_job(replace(spec(), capabilities=_ALL), workers=4)
    asked = Growth(workers=6, number=1, until=T0 + 50)
    growing = replace(job, decision=replace(job.decision, growth=asked))
    assert [(each.what[:22], each.at) for each in prospects(growing)] == [("the growth to 6 worker", T0 + 50)]
    pausing = replace(job, decision=replace(job.decision, growth=replace(asked, workers=0)))
    assert [(each.what, each.at) for each in prospects(pausing)] == [("it may grow again", T0 + 50)]


def test_a_resume_is_bounded() -> None:
    free = seeing(granted=first(6))
    resuming = decide(suspended_job(), free, at=10).job
    assert resuming.decision.phase is Phase.RESUMING
    (prospect,) = prospects(resuming)
    assert prospect.at == resuming.decision.resume_until
    assert "unless run 2 has started" in prospect.what
