"""Job metrics count every change once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from servicekit.metrics import registry
from supervisor.domain.agreement import Agreement, Purpose, Round
from supervisor.domain.ids import Host
from supervisor.domain.job import AcknowledgementKind, Phase, Stop, SupervisedJob
from supervisor.domain.order import ProcessDirective, ProcessDirectiveKind, Worker
from supervisor.observability.journal import JobForgotten
from supervisor.observability.metrics.jobs import AgreementMetrics, JobMetrics, NamedJobs, StepsLost
from supervisor.observability.metrics.notices import Latencies, certain
from supervisor.observability.metrics.state import Suspensions
from tests.supervisor.decide.decide_builders import (
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
)
from tests.supervisor.observability.metrics.observability_metrics import Story

Tell = Callable[[SupervisedJob], Story]


@pytest.fixture
def counted() -> Tell:
    def tell(job: SupervisedJob) -> Story:
        story = Story(job, registry())
        named = NamedJobs(2)
        story.registry.register(named)
        story.listeners = [
            named,
            JobMetrics(story.registry, story.noticed, POLICY, named),
            Suspensions(story.registry, lambda _: 8.0, story.now),
        ]
        return story

    return tell


def stopping(story: Story, *numbers: int) -> None:
    """It is told to stop at once, because of those hosts."""
    story.notices = noticed(*(notice(number, left=30.0) for number in numbers))
    story.decides(0.5)
    assert story.job.decision.phase is Phase.STOPPING


def test_a_group_is_one_decision_and_each_of_its_hosts_an_exclusion(counted: Tell) -> None:
    """What follows from it, up to the launcher's word that all is in place, is no other group."""
    story = counted(running_job())
    story.notices = noticed(notice(1), notice(2))
    for at in (0.1, 2.0):
        story.decides(at)
    story.becomes(obeyed(story.job), 2.1)
    story.decides(2.2)
    assert story.job.decision.phase is Phase.RUNNING
    assert story.value("groups_total", outcome="shrunk") == 1
    assert story.value("exclusions_total") == 2
    assert story.value("groups_total", outcome="stopped") == 0


def test_from_a_stop_to_the_run_after_it(counted: Tell) -> None:
    """One suspension, one acknowledgement with its duration and what was left, and how long it lasted."""
    story = counted(running_job(spec(6, 6)))
    stopping(story, 6)
    acknowledgement = answered(story.job).observed.acknowledgement
    assert acknowledgement is not None
    story.becomes(observing(story.job, acknowledgement=replace(acknowledgement, at=T0 + 4.5)), 4.6)
    story.decides(4.7)
    assert story.job.decision.phase is Phase.SUSPENDED
    story.becomes(obeyed(story.job), 5.0)
    story.decides(5.0)
    assert not story.job.decision.hosts
    story.at = 15.0
    assert story.value("released_worker_seconds_total") == 60
    assert story.value("released_gpu_seconds_total") == 480
    resumed = replace(story.job.decision, phase=Phase.RESUMING, run=2, hosts=hosts(1, 2))
    story.becomes(replace(story.job, decision=resumed), 25.0)
    story.becomes(replace(story.job, decision=replace(resumed, phase=Phase.RUNNING)), 34.7)
    story.at = 100.0
    assert story.value("released_worker_seconds_total") == 120
    assert [story.value(f"{name}_total") for name in ("suspensions", "resumes", "timeouts", "late_stops")] == [
        1,
        1,
        0,
        0,
    ]
    assert story.value("acknowledgements_total", kind="saved") == 1
    assert story.measured("acknowledgement_seconds") == (1, 4.0)
    assert story.value("acknowledgement_margin_seconds_bucket", le="20.0") == 0
    assert story.value("acknowledgement_margin_seconds_bucket", le="30.0") == 1
    assert story.measured("suspended_seconds") == (1, 30.0)


def test_a_better_acknowledgement_is_no_second_checkpoint(counted: Tell) -> None:
    """A process may leave, and its checkpoint be confirmed afterwards: both are counted, the first is measured."""
    story = counted(running_job(spec(6, 6)))
    stopping(story, 6)
    story.becomes(answered(story.job, AcknowledgementKind.LEFT), 3.0)
    story.becomes(answered(story.job, AcknowledgementKind.SAVED), 4.0)
    assert [story.value("acknowledgements_total", kind=kind) for kind in ("left", "saved")] == [1, 1]
    assert story.value("acknowledgement_seconds_count") == 1


def test_a_stop_that_nobody_answers_is_late_once(counted: Tell) -> None:
    story = counted(running_job(spec(6, 6)))
    stopping(story, 6)
    for at in (29.0, 31.0, 32.0):
        story.decides(at)
    assert story.job.decision.phase is Phase.SUSPENDED
    assert story.value("late_stops_total") == 1
    assert story.value("job_late_stops_total", job_namespace="", job_kind="standalone", job_name="job") == 1
    assert story.value("acknowledgement_seconds_count") == 0


def test_an_answer_after_the_deadline_is_late(counted: Tell) -> None:
    """A checkpoint that took longer than there was counts as one, though the node outlived it."""
    story = counted(running_job(spec(6, 6)))
    stopping(story, 6)
    acknowledgement = answered(story.job).observed.acknowledgement
    assert acknowledgement is not None
    story.becomes(observing(story.job, acknowledgement=replace(acknowledgement, at=T0 + 31.0)), 31.0)
    story.decides(31.1)
    assert story.value("late_stops_total") == 1
    assert story.value("job_late_stops_total", job_namespace="", job_kind="standalone", job_name="job") == 1
    assert story.value("acknowledgement_margin_seconds_bucket", le="0.0") == 1


def test_a_stop_whose_checkpoint_failed_counts_with_the_late_ones(counted: Tell) -> None:
    """Once, however often the process says so; nothing was saved whose time could be measured."""
    story = counted(running_job(spec(6, 6)))
    stopping(story, 6)
    for at, has_left in ((2.0, False), (3.0, True)):
        failed = answered(story.job, AcknowledgementKind.FAILED, error="a full disk", has_left=has_left)
        story.becomes(failed, at)
    story.decides(3.1)
    assert story.job.decision.phase is Phase.SUSPENDED
    assert story.value("acknowledgements_total", kind="failed") == 1
    assert story.value("late_stops_total") == 1
    assert story.value("acknowledgement_seconds_count") == 0
    assert story.value("acknowledgement_margin_seconds_count") == 0


def test_a_run_that_ends_by_itself_while_it_stops_is_not_late(counted: Tell) -> None:
    story = counted(running_job(spec(6, 6)))
    stopping(story, 6)
    story.becomes(observing(story.job, running=False, exit_code=1), 2.0)
    story.decides(2.1)
    assert [story.value(f"{name}_total") for name in ("suspensions", "late_stops")] == [1, 0]


def test_a_resume_that_fails_is_no_suspension(counted: Tell) -> None:
    """The job has been suspended all along, and what it does not use is released again."""
    story = counted(suspended_job())
    story.becomes(replace(story.job, decision=replace(story.job.decision, reason="It waits still.")), 0.0)
    resuming = replace(story.job.decision, phase=Phase.RESUMING, hosts=hosts(1, 2, 3), run=2)
    story.becomes(replace(story.job, decision=resuming), 10.0)
    failed = replace(resuming, phase=Phase.SUSPENDED, hosts=frozenset(), failed_resumes=1)
    story.becomes(replace(story.job, decision=failed), 130.0)
    story.at = 140.0
    assert [story.value(f"{name}_total") for name in ("suspensions", "resumes")] == [0, 0]
    assert story.value("released_worker_seconds_total") == 6 * 20


@pytest.mark.parametrize(
    "skipped", [(), (Phase.STOPPING,), (Phase.SUSPENDED,), (Phase.STOPPING, Phase.SUSPENDED), (Phase.RESUMING,)]
)
def test_what_comes_together_counts_as_if_it_had_come_apart(counted: Tell, skipped: tuple[Phase, ...]) -> None:
    """A watch that tells of several changes at once shows the last one alone."""
    story = counted(running_job(spec(6, 6)))
    stopped = decide(story.job, seeing(noticed(notice(6))), 1.0).job
    suspended = decide(observing(stopped, running=False, exit_code=1), seeing(noticed(notice(6))), 2.0).job
    resuming = replace(suspended, decision=replace(suspended.decision, phase=Phase.RESUMING, run=2))
    running = replace(resuming, decision=replace(resuming.decision, phase=Phase.RUNNING))
    for at, job in enumerate((stopped, suspended, resuming, running)):
        if job.decision.phase not in skipped:
            story.becomes(job, float(at))
    assert [story.value(f"{name}_total") for name in ("suspensions", "resumes")] == [1, 1]
    assert story.value("groups_total", outcome="stopped") == 1
    assert story.value("suspended_seconds_count") == 1


def test_a_job_that_waits_too_long_is_given_up(counted: Tell) -> None:
    story = counted(suspended_job(spec(max_wait=60.0)))
    story.decides(1.0)
    story.decides(61.0)
    assert story.job.decision.phase is Phase.TIMED_OUT
    before = story.value("released_worker_seconds_total")
    story.at = 1000.0
    assert story.value("timeouts_total") == 1
    assert story.value("suspended_seconds_count") == 1
    assert story.value("released_worker_seconds_total") == before


def test_a_suspended_job_that_is_deleted_releases_nothing_more(counted: Tell) -> None:
    story = counted(suspended_job())
    story.becomes(replace(story.job, decision=replace(story.job.decision, reason="No room.")), 2.0)
    story.hear(JobForgotten(story.job, T0 + 12.0))
    story.at = 1000.0
    assert story.value("released_worker_seconds_total") == 6 * 10
    assert story.value("suspended_seconds_count") == 1


def test_what_was_suspended_before_counts_from_now_on() -> None:
    """A new leader knows what is stored: that it is suspended, and what it asked for."""
    story = Story(suspended_job(), registry(), at=50.0)
    suspensions = Suspensions(story.registry, lambda _: None, story.now)
    suspensions.begin([story.job])
    story.at = 60.0
    assert story.value("released_worker_seconds_total") == 60
    assert story.value("released_gpu_seconds_total") == 0


@pytest.fixture
def timed() -> tuple[Story, Latencies]:
    """A job of six, of which three must be left, with everything that times what is told to it."""
    story = Story(running_job(), registry())
    latencies = Latencies(story.registry, story.noticed, story.now)
    story.listeners = [latencies]
    return story, latencies


def directive(kind: ProcessDirectiveKind, generation: int, host: Host | None = None) -> ProcessDirective:
    return ProcessDirective(kind=kind, run=1, generation=generation, reason="It must.", host=host)


def test_a_group_is_timed_from_its_first_notice(timed: tuple[Story, Latencies]) -> None:
    """Whether the processes hear first or the journal does; whoever connects later is not counted again."""
    story, latencies = timed
    story.notices = noticed(notice(1), notice(2, seen=T0 + 0.5))
    story.decides(1.0)
    step = decide(story.job, seeing(story.notices), 1.3)
    [on_directives_sent] = [directive(ProcessDirectiveKind.LEAVE, step.job.decision.excluded_at, Host("n2"))]
    story.at = 1.5
    latencies.on_directives_sent(
        story.job.name, [on_directives_sent, directive(ProcessDirectiveKind.RUN, on_directives_sent.generation)]
    )
    story.becomes(step.job, 1.4)
    assert story.measured("notice_to_decision_seconds", decision="shrink") == (1, 1.4)
    assert story.measured("decision_to_directive_seconds", directive="LEAVE") == (1, 0.1)
    assert story.measured("notice_to_directive_seconds", directive="LEAVE") == (1, 1.5)
    story.at = 60.0
    latencies.on_directives_sent(story.job.name, [on_directives_sent])
    assert story.value("decision_to_directive_seconds_count", directive="LEAVE") == 1


def test_a_leave_that_nothing_was_decided_about_is_not_timed(timed: tuple[Story, Latencies]) -> None:
    """It has the generation of the last decision, which may be hours old."""
    story, latencies = timed
    story.notices = noticed(notice(1))
    story.decides(2.0)
    generation = story.job.decision.generation
    story.at = 500.0
    latencies.on_directives_sent(story.job.name, [directive(ProcessDirectiveKind.LEAVE, generation, Host("n2"))])
    assert story.value("decision_to_directive_seconds_count", directive="LEAVE") is None


def test_a_stop_is_timed_from_the_notice_that_made_it_certain(timed: tuple[Story, Latencies]) -> None:
    story, latencies = timed
    story.notices = noticed(*(notice(number, seen=T0 + number / 4) for number in (1, 2, 3, 4)))
    story.decides(1.01)
    assert story.job.decision.stop is not None
    latencies.on_directives_sent(
        story.job.name, [directive(ProcessDirectiveKind.STOP, story.job.decision.stop.generation)]
    )
    assert story.measured("notice_to_decision_seconds", decision="stop") == (1, 0.01)
    assert story.value("decision_to_directive_seconds_count", directive="STOP") == 1


def test_a_loss_without_notice_has_no_notice_to_count_from() -> None:
    job = running_job(spec(3, 6))
    assert certain(job, noticed(notice(1), notice(2)), T0) is None
    launched = replace(job, spec=replace(job.spec, launcher_host=Host("n9")))
    assert certain(launched, noticed(notice(1), notice(9)), T0) == notice(9)


def test_agreements_are_counted_by_their_outcome() -> None:
    """Each attempt counts once, and its time from the first poll to the commit."""
    story = Story(running_job(spec(6, 6)), registry())
    story.listeners = [AgreementMetrics(story.registry)]

    def agreed(at: float, agreement: Agreement | None, **changes: Any) -> None:
        story.becomes(replace(story.job, decision=replace(story.job.decision, agreement=agreement, **changes)), at)

    poll = Agreement(epoch=1, purpose=Purpose.STOP, run=1, since=T0, began=T0)
    agreed(0.0, poll)
    agreed(1.0, None)
    agreed(2.0, replace(poll, epoch=2))
    proposal = replace(poll, epoch=2, step=7)
    agreed(2.1, proposal)
    commit = replace(proposal, committed=True, since=T0 + 0.25)
    agreed(2.2, commit, stop=Stop(run=1, generation=6, since=T0))
    agreed(2.3, replace(poll, epoch=3))
    agreed(9.0, None)
    agreed(9.5, replace(poll, epoch=4, purpose=Purpose.CHECKPOINT))
    agreed(9.6, replace(poll, epoch=5))
    for outcome in ("committed", "missed", "withdrawn", "failed"):
        assert story.value("agreements_total", purpose="stop", outcome=outcome) == 1, outcome
    assert story.value("agreements_total", purpose="checkpoint", outcome="withdrawn") == 1
    assert story.measured("agreement_seconds") == (1, 0.25)


def test_rounds_are_counted_by_how_they_are_entered() -> None:
    """And an agreement that led to none of them was withdrawn, or failed if the round changed without it."""
    story = Story(running_job(spec(6, 6)), registry())
    story.listeners = [AgreementMetrics(story.registry)]
    poll = Agreement(epoch=1, purpose=Purpose.REGROUP, run=1, since=T0, began=T0)
    first = Round(number=1, run=1, members=("m",), hosts=(Host("n1"),), since=T0)

    def decided(at: float, **changes: Any) -> None:
        story.becomes(replace(story.job, decision=replace(story.job.decision, **changes)), at)

    decided(0.0, round=first)
    decided(0.5, round=replace(first, starting=(Host("n2"),)))
    decided(1.0, agreement=poll)
    decided(2.0, agreement=None)
    decided(3.0, agreement=replace(poll, epoch=2))
    decided(4.0, agreement=None, round=replace(first, number=2, in_process=True))
    assert story.value("rounds_total", mode="restart") == 1
    assert story.value("rounds_total", mode="in_process") == 1
    for outcome in ("withdrawn", "failed"):
        assert story.value("agreements_total", purpose="regroup", outcome=outcome) == 1, outcome


def test_steps_are_lost_where_the_next_run_says_an_earlier_one() -> None:
    """Said once for each run, by its rank 0; another run's, another rank's and no step at all say nothing."""
    story = Story(running_job(spec(6, 6)), registry())
    named = NamedJobs(1)
    story.registry.register(named)
    steps = StepsLost(story.registry, named)
    story.listeners = [named, steps]
    story.notices = noticed(notice(6))
    story.decides(0.5)
    story.becomes(answered(story.job, step=70), 1.0)
    rank_zero = Worker("process", story.job.id, 2, Host("n1"), 0)
    for worker, step in (
        (replace(rank_zero, run=1), 1),
        (replace(rank_zero, rank=1), 1),
        (rank_zero, None),
        (rank_zero, 64),
        (rank_zero, 1),
    ):
        steps.on_step(worker, step)
    assert story.value("steps_lost_total") == 6
    assert story.value("job_steps_lost_total", job_namespace="", job_kind="standalone", job_name="job") == 6
    story.becomes(
        answered(replace(story.job, observed=replace(story.job.observed, acknowledgement=None)), step=80), 2.0
    )
    steps.on_step(rank_zero, 90)
    assert story.value("steps_lost_total") == 6
