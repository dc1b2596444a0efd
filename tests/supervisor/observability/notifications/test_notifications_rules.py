"""What a change is worth telling, from decisions of the real `plan`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import AcknowledgementKind, Phase, Result, SupervisedJob
from supervisor.domain.notice import SIMULATED, NoticeState, ReclaimNotice
from supervisor.observability.journal import JobChanged, JobForgotten, NoticeChanged, is_late
from supervisor.observability.notifications.message import NotificationKind, Occurrence
from supervisor.observability.notifications.notifier import CoverageWatch, occurrences, recent
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    answered,
    decide,
    first,
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


class NotifiedLife:
    """A job's decisions one after another, and what they were worth telling."""

    def __init__(self, job: SupervisedJob, *notices: ReclaimNotice) -> None:
        self.job = job
        self.noticed = noticed(*notices)
        self.told: list[Occurrence] = []

    def of(self, _name: JobName) -> Mapping[Host, ReclaimNotice]:
        return self.noticed

    def becomes(self, job: SupervisedJob, at: float) -> None:
        late = partial(is_late, noticed=self.of, policy=POLICY)
        self.told += occurrences(JobChanged(self.job, job, T0 + at), late)
        self.job = job

    def decided(self, at: float, granted: frozenset[Host] = frozenset()) -> None:
        self.becomes(decide(self.job, seeing(self.noticed, granted=granted), at).job, at)

    def kinds(self) -> list[NotificationKind]:
        return [each.kind for each in self.told]


def stopped() -> NotifiedLife:
    life = NotifiedLife(running_job(spec(4)), *(notice(number, left=60.0 + number) for number in (1, 2, 3)))
    life.decided(2.0)
    return life


def test_a_group_that_is_excluded_is_one_occurrence_with_its_hosts() -> None:
    life = NotifiedLife(running_job(spec(3)), notice(1), notice(2))
    life.decided(1.0)
    assert life.kinds() == []
    life.decided(5.0)
    (told,) = life.told
    assert (told.kind, told.hosts, told.text, told.at) == (
        NotificationKind.SHRUNK,
        ("n1", "n2"),
        life.job.decision.reason,
        T0 + 5,
    )


def test_a_stop_is_told_when_the_job_is_suspended_and_when_it_runs_again() -> None:
    life = stopped()
    assert life.kinds() == []
    life.becomes(answered(life.job, step=41), 3.0)
    life.decided(3.5)
    assert "step 41" in life.told[-1].text
    life.becomes(obeyed(life.job), 4.0)
    life.noticed = {}
    for at in (5.0, 8.0):
        life.decided(at, granted=first(6))
    life.becomes(obeyed(life.job), 9.0)
    life.decided(9.5)
    assert life.kinds() == [NotificationKind.SUSPENDED, NotificationKind.RESUMED]


def test_a_stop_without_an_answer_is_late() -> None:
    life = stopped()
    life.decided(70.0)
    assert life.kinds() == [NotificationKind.SUSPENDED, NotificationKind.LATE_STOP]


def test_an_answer_after_the_deadline_is_late_and_told_once() -> None:
    life = stopped()
    late = answered(life.job, step=41)
    acknowledgement = late.observed.acknowledgement
    assert acknowledgement is not None
    life.becomes(observing(late, acknowledgement=replace(acknowledgement, at=T0 + 61.5)), 61.5)
    life.decided(62.0)
    assert life.kinds() == [NotificationKind.LATE_STOP, NotificationKind.SUSPENDED]


def test_a_save_that_failed_is_told_as_critical_with_its_error() -> None:
    life = stopped()
    life.becomes(answered(life.job, AcknowledgementKind.FAILED, error="a full disk", has_left=True), 3.0)
    life.decided(3.5)
    assert life.kinds() == [NotificationKind.SUSPENDED, NotificationKind.LATE_STOP]
    assert "Rank 0 could not save: a full disk; " in life.told[-1].text


def test_an_answer_in_time_is_not_late() -> None:
    life = stopped()
    life.becomes(answered(life.job, step=41), 3.0)
    assert life.kinds() == []


def test_a_job_that_times_out_or_ends_is_told() -> None:
    life = NotifiedLife(suspended_job(spec(max_wait=10.0)))
    life.decided(11.0)
    life.becomes(observing(life.job, result=Result.TIMED_OUT), 12.0)
    life.decided(12.5)
    assert life.kinds()[0] == NotificationKind.TIMED_OUT
    ended = NotifiedLife(observing(running_job(), running=False, result=Result.SUCCEEDED))
    ended.decided(1.0)
    assert ended.kinds() == [NotificationKind.FINISHED]


def test_a_job_that_becomes_known_or_is_forgotten_is_not_told() -> None:
    job = running_job()
    late = partial(is_late, noticed=lambda _job: {}, policy=POLICY)
    assert not list(occurrences(JobChanged(None, job, T0), late))
    assert not list(occurrences(JobForgotten(job, T0), late))


def test_a_notice_is_told_once_for_each_episode() -> None:
    late = partial(is_late, noticed=lambda _job: {}, policy=POLICY)
    one = notice(1)
    (told,) = occurrences(NoticeChanged(None, one, T0), late)
    assert (told.kind, told.hosts, told.drill) == (NotificationKind.NOTICE, ("n1",), False)
    assert not list(occurrences(NoticeChanged(one, replace(one, deadline=T0 + 1), T0), late))
    assert not list(occurrences(NoticeChanged(None, replace(one, state=NoticeState.GONE), T0), late))
    (again,) = occurrences(NoticeChanged(one, replace(one, episode=2), T0), late)
    assert again.id != told.id
    (drill,) = occurrences(NoticeChanged(None, replace(one, source=SIMULATED), T0), late)
    assert drill.drill


def test_a_drill_is_marked() -> None:
    life = NotifiedLife(running_job(spec(3)), replace(notice(1), source=SIMULATED))
    life.decided(1.0)
    life.decided(5.0)
    assert [each.drill for each in life.told] == [True]


def test_a_new_leader_finds_what_was_suspended_a_moment_ago_by_the_same_id() -> None:
    life = stopped()
    life.becomes(answered(life.job, step=41), 3.0)
    life.decided(3.5)
    (told,) = life.told
    later = replace(life.job, decision=replace(life.job.decision, generation=99))
    (again,) = recent([later, running_job(name="other")], since=T0 + 3.0)
    assert (again.id, again.kind, again.at) == (told.id, NotificationKind.SUSPENDED, T0 + 3.5)
    assert not list(recent([later], since=T0 + 4.0))


def test_workers_are_told_of_once_when_they_stay_uncovered() -> None:
    """And again only after all of them were covered; a moment is nothing to tell."""
    job = running_job()
    jobs, missing = {job.name: job}, dict.fromkeys(sorted(hosts(1, 2)), "agent")
    watch = CoverageWatch(lambda _job: missing, 60.0)
    assert not list(watch.look(jobs, 0.0))
    assert not list(watch.look(jobs, 59.0))
    (told,) = watch.look(jobs, 60.0)
    assert (told.kind, told.hosts, told.job) == (NotificationKind.UNCOVERED, ("n1", "n2"), job.name)
    assert "n1 (agent), n2 (agent)" in told.text
    assert not list(watch.look(jobs, 120.0))
    missing.clear()
    assert not list(watch.look(jobs, 130.0))
    missing[Host("n3")] = "stream"
    assert not list(watch.look(jobs, 140.0))
    assert [each.hosts for each in watch.look(jobs, 200.0)] == [("n3",)]


def test_each_worker_has_its_own_time() -> None:
    job = running_job()
    jobs, missing = {job.name: job}, {Host("n1"): "agent"}
    watch = CoverageWatch(lambda _job: missing, 60.0)
    list(watch.look(jobs, 0.0))
    missing = {Host("n2"): "agent"}
    assert not list(watch.look(jobs, 60.0))
    assert not list(watch.look({}, 61.0))
    assert not list(watch.look(jobs, 120.0))
    assert job.decision.phase is Phase.RUNNING


def test_a_job_that_takes_the_name_of_an_earlier_one_is_told_of_itself() -> None:
    """And its workers have a minute of their own to connect."""
    job = running_job()
    watch = CoverageWatch(lambda _job: {Host("n1"): "agent"}, 60.0)
    list(watch.look({job.name: job}, 0.0))
    assert len(list(watch.look({job.name: job}, 60.0))) == 1
    later = {job.name: replace(job, uid="later")}
    assert not list(watch.look(later, 61.0))
    assert len(list(watch.look(later, 121.0))) == 1
