from dataclasses import replace

import pytest

from servicekit.metrics import registry
from supervisor.domain.ids import JobName
from supervisor.domain.job import Result, SupervisedJob
from supervisor.observability.journal import JobChanged, JobForgotten
from supervisor.observability.metrics.jobs import NamedJobs
from tests.supervisor.decide.decide_builders import (
    T0,
    answered,
    notice,
    noticed,
    obeyed,
    observing,
    running_job,
    spec,
    waiting_job,
)
from tests.supervisor.observability.metrics.observability_metrics import Story

_LABELS = {"job_namespace": "", "job_kind": "standalone", "job_name": "job"}


class _Told:
    """Named jobs, told of jobs that come and go."""

    def __init__(self, most: int) -> None:
        self.named = NamedJobs(most)
        self.registry = registry()
        self.registry.register(self.named)

    def begins(self, *jobs: SupervisedJob) -> None:
        for job in jobs:
            self.named.on_change(JobChanged(None, job, T0))

    def ends(self, job: SupervisedJob) -> None:
        self.named.on_change(JobChanged(job, _over(job), T0))

    def forgets(self, job: SupervisedJob) -> None:
        self.named.on_change(JobForgotten(job, T0))

    @property
    def names(self) -> set[str]:
        families = {family.name: family for family in self.registry.collect()}
        return {sample.labels["job_name"] for sample in families["job_supervisor_job_phase"].samples}

    @property
    def unnamed(self) -> float | None:
        return self.registry.get_sample_value("job_supervisor_unnamed_jobs")


def _job(name: str) -> SupervisedJob:
    return replace(waiting_job(), name=JobName(name))


def _over(job: SupervisedJob) -> SupervisedJob:
    return observing(job, running=False, result=Result.SUCCEEDED)


def test_a_job_has_its_phase_its_workers_and_its_suspensions() -> None:
    story = Story(running_job(spec(6, 6)), registry())
    named = NamedJobs(1)
    story.registry.register(named)
    story.listeners = [named]
    story.notices = noticed(notice(6))
    story.becomes(story.job, 0.1)
    assert story.value("job_workers", **_LABELS) == 6
    story.decides(0.5)
    assert story.value("job_phase", phase="Stopping", **_LABELS) == 1
    assert story.value("job_phase", phase="Running", **_LABELS) is None
    story.becomes(answered(story.job), 3.0)
    story.becomes(obeyed(story.job), 4.0)
    story.decides(4.1)
    assert story.value("job_phase", phase="Suspended", **_LABELS) == 1
    assert story.value("job_suspensions_total", **_LABELS) == 1


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("resnet", ("", "standalone", "resnet")),
        ("ml/trainingjob.resnet", ("ml", "trainingjob", "resnet")),
        ("ml/mpijob.resnet.v2", ("ml", "mpijob", "resnet.v2")),
    ],
)
def test_a_job_is_named_as_people_know_it(name: str, labels: tuple[str, str, str]) -> None:
    told = _Told(1)
    told.begins(_job(name))
    [sample] = next(family for family in told.registry.collect() if family.name.endswith("job_phase")).samples
    assert tuple(sample.labels[label] for label in ("job_namespace", "job_kind", "job_name")) == labels


def test_no_more_jobs_are_named_than_is_allowed() -> None:
    """The others are counted, and one of them is named once there is a place and it changes."""
    told = _Told(2)
    first, second, third = (_job(name) for name in ("a", "b", "c"))
    told.begins(first, second, third, third)
    assert (told.names, told.unnamed) == ({"a", "b"}, 1)
    told.forgets(first)
    told.begins(third)
    assert (told.names, told.unnamed) == ({"b", "c"}, 0)


def test_a_job_that_is_over_keeps_its_series_until_a_new_one_needs_the_place() -> None:
    told = _Told(2)
    first, second = _job("a"), _job("b")
    told.begins(first, second)
    told.ends(first)
    assert told.names == {"a", "b"}
    told.begins(_job("c"))
    assert (told.names, told.unnamed) == ({"b", "c"}, 0)


def test_a_job_that_is_over_before_it_is_named_takes_no_place() -> None:
    told = _Told(1)
    first, second = _job("a"), _job("b")
    told.begins(first, second)
    told.ends(second)
    assert (told.names, told.unnamed) == ({"a"}, 0)
    told.begins(_over(_job("c")))
    assert told.names == {"a"}


def test_the_stored_jobs_are_named_first_those_that_are_not_over() -> None:
    told = _Told(1)
    told.named.begin([_over(_job("a")), _job("b")])
    assert told.names == {"b"}


def test_no_job_is_named_if_none_is_wanted() -> None:
    told = _Told(0)
    told.begins(_job("a"))
    assert (told.named.jobs, told.names, told.unnamed) == ({}, set(), 1)
