"""Whatever numbers a job of any kind has, it takes little time and memory, and says why it is not supervised."""

import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from servicekit.bounds import MAX_HOSTS, MAX_ROLES
from supervisor.decide.plan import plan
from supervisor.decide.policy import Policy
from supervisor.decide.situation import JobFacts
from supervisor.domain.ids import Host
from supervisor.domain.job import Phase, Result
from tests.supervisor.decide.decide_builders import T0
from tests.supervisor.jobs.every_kind import (
    BILLION,
    BY_NAME,
    OPTED_IN,
    PREFIX,
    SIZED,
    manifest,
    observed,
    replicas,
    replicated_job,
    spec_of,
)


def _peak(kind: str, spec: Mapping[str, Any], annotations: Mapping[str, str]) -> int:
    """The bytes that reading a job takes at most."""
    observed(kind, spec, annotations)
    tracemalloc.start()
    try:
        observed(kind, spec, annotations)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("annotations", [{}, OPTED_IN], ids=["not-opted-in", "opted-in"])
@pytest.mark.parametrize("kind", SIZED)
def test_a_job_of_any_size_takes_little_memory(kind: str, annotations: dict[str, str]) -> None:
    """A JobSet of a million replicas took 546 MiB and 14 s, whether it had opted in or not."""
    assert _peak(kind, spec_of(kind, BILLION), annotations) < 100_000


@pytest.mark.parametrize("kind", SIZED)
def test_a_job_beyond_the_bound_says_so_and_is_not_planned(kind: str) -> None:
    """Its size is unknown, so no host of it is granted, excluded or stopped; the largest one is supervised."""
    refused = observed(kind, spec_of(kind, BILLION))
    assert refused is not None
    why = "The job is not supervised: it asks for more than 10,000 workers."
    assert (refused.spec.refused, refused.spec.ignored, refused.decision.reason) == (True, (why,), why)
    assert (refused.decision.phase, refused.own_hosts, refused.spec.requested_workers) == (
        Phase.WAITING,
        frozenset(),
        1,
    )
    job = BY_NAME[kind].decode(manifest(spec_of(kind, BILLION), OPTED_IN, {}))
    assert job.resource_request is None
    planned = plan(refused, JobFacts(), T0 + 1e6, Policy())
    assert (planned.decision, planned.actions, planned.wake_at) == (refused.decision, (), None)
    largest = observed(kind, spec_of(kind, MAX_HOSTS))
    assert largest is not None
    assert (largest.spec.refused, len(largest.observed.hosts)) == (False, MAX_HOSTS)


@pytest.mark.parametrize("kind", SIZED)
def test_a_job_that_is_made_larger_or_smaller_than_the_bound_is_registered_anew(kind: str) -> None:
    """Nothing that was known about it counts then."""
    small, large = spec_of(kind, 3), spec_of(kind, BILLION)
    supervised, refused = observed(kind, small), observed(kind, large)
    assert observed(kind, large, known=supervised) is None
    assert observed(kind, small, known=refused) is None
    assert observed(kind, large, known=refused) == refused
    assert supervised is not None
    ended = replace(supervised, observed=replace(supervised.observed, result=Result.SUCCEEDED))
    assert observed(kind, large, known=ended) == ended


def test_a_job_that_is_not_supervised_ends_as_its_controller_says() -> None:
    ended = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    refused = observed("pytorchjob", spec_of("pytorchjob", BILLION))
    value = observed("pytorchjob", spec_of("pytorchjob", BILLION), known=refused, status=ended)
    assert value is not None
    assert value.observed.result is Result.SUCCEEDED
    assert observed("pytorchjob", spec_of("pytorchjob", BILLION), status=ended) is None


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("jobset", {"replicatedJobs": [replicated_job(1, name=f"r{number}") for number in range(MAX_ROLES + 1)]}),
        ("vcjob", {"tasks": [{"name": f"t{number}", **replicas(1)} for number in range(MAX_ROLES + 1)]}),
    ],
)
def test_a_job_of_too_many_roles_says_so(kind: str, spec: dict[str, Any]) -> None:
    """Each has a template, which takes time to read."""
    value = observed(kind, spec)
    assert value is not None
    assert value.spec.ignored == ("The job is not supervised: it has 101 roles, more than 100.",)


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("pytorchjob", {"pytorchReplicaSpecs": {"Master": replicas(-5), "Worker": replicas(8)}}),
        ("jobset", {"replicatedJobs": [replicated_job(-1), replicated_job(5, name="other")]}),
        ("jobset", {"replicatedJobs": [replicated_job(-1, parallelism=-4)]}),
        ("vcjob", {"tasks": [{"name": "a", **replicas(-1)}, {"name": "b", **replicas(5)}]}),
        ("batchjob", spec_of("batchjob", -3)),
    ],
)
def test_a_negative_number_of_pods_is_no_size(kind: str, spec: dict[str, Any]) -> None:
    assert observed(kind, spec) is None


@pytest.mark.parametrize("kind", SIZED)
@pytest.mark.parametrize("noted", ["4", "10000", "3000000", "999999999", "9" * 5000, "-1", "many"])
def test_a_number_that_the_supervisor_has_not_noted_is_not_believed(kind: str, noted: str) -> None:
    """A known job has asked for as many before, else somebody else wrote it, who may be anybody in the namespace."""
    known = observed(kind, spec_of(kind, 3))
    value = observed(kind, spec_of(kind, 3), {**OPTED_IN, f"{PREFIX}requested-workers": noted}, known=known)
    assert value is not None
    assert (value.spec.requested_workers, len(value.observed.hosts)) == (3, 3)
    (why,) = value.spec.ignored
    assert why.startswith("The annotation requested-workers is ignored: ")
    assert len(why) < 512


@pytest.mark.parametrize("kind", [kind for kind in SIZED if kind != "jobset"])
def test_a_number_that_the_supervisor_has_noted_is_believed(kind: str) -> None:
    """Also by another supervisor, whose store was lost."""
    noted = {**OPTED_IN, f"{PREFIX}requested-workers": "8"}
    for known in (observed(kind, spec_of(kind, 8)), None):
        value = observed(kind, spec_of(kind, 3), noted, known=known)
        assert value is not None
        assert (value.spec.requested_workers, value.spec.ignored) == (8, ())


def test_a_jobset_keeps_the_names_of_its_pods() -> None:
    """A role is a replicated job; its Jobs are parts of it."""
    jobs: Sequence[Any] = [replicated_job(2, parallelism=2), replicated_job(1, name="driver")]
    value = observed("jobset", {"replicatedJobs": jobs})
    assert value is not None
    names = ("worker-0-0", "worker-0-1", "worker-1-0", "worker-1-1", "driver-0-0")
    assert value.observed.hosts == {Host(f"bert-{name}") for name in names}


@pytest.mark.parametrize("kind", SIZED)
def test_a_job_with_the_longest_name_is_supervised_or_says_why_not(kind: str) -> None:
    """Its pods are called after it, so there can be none where that leaves no room for a role and a number."""
    for length in (200, 240):
        value = observed(kind, spec_of(kind, 3), name="a" * length)
        assert value is not None
        assert not value.spec.refused
    value = observed(kind, spec_of(kind, 3), name="a" * 253)
    assert value is not None
    why = "The job is not supervised: the names of its pods would have more than 253 characters."
    assert (value.spec.refused, value.spec.ignored) == (True, (why,))


_INSTANTS = ("0001-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2023-11-14T22:13:20Z")


@pytest.mark.parametrize("kind", SIZED)
@pytest.mark.parametrize("at", _INSTANTS)
def test_a_job_may_have_begun_at_any_instant(kind: str, at: str) -> None:
    """Its status is free text to some definitions: without an offset, at the ends of time, and mixed."""
    conditions = [{"type": "Created", "status": "True", "lastTransitionTime": each} for each in (at, *_INSTANTS)]
    status = {"phase": "Created", "startTime": at, "conditions": conditions}
    value = observed(kind, spec_of(kind, 3), status=status)
    assert value is not None
    assert value.decision.waiting_since is not None
    assert 0 <= value.decision.waiting_since <= T0
