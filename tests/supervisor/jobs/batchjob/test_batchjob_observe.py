"""What an Indexed Job and its pods are taken for."""

from typing import Any

import msgspec
import pytest

from supervisor.cluster.objects import Pod, read_pod
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Capability, Phase, Result, SupervisedJob
from supervisor.jobs.batchjob.kind import BATCHJOB
from supervisor.jobs.kind import JobState
from supervisor.jobs.replicated import ReplicatedJob

KIND = BATCHJOB
NAME = JobName("team/batchjob.bert")
PREFIX = "job-supervisor.kube-ai.io/"
_OURS = {f"{PREFIX}suspended-by": "elastic-job-supervisor"}


def _job(*, annotations: dict[str, str] | None = None, owner: dict[str, Any] | None = None, **spec: Any) -> Any:
    """The manifest of a running Job of three pods, with a minimum of two."""
    opted_in = {f"{PREFIX}managed-by-job-supervisor": "true", f"{PREFIX}min-workers": "2"}
    size = {"completionMode": "Indexed", "parallelism": 3, "completions": 3}
    return {
        "metadata": {
            "name": "bert",
            "namespace": "team",
            "uid": "job-uid",
            "resourceVersion": "7",
            "annotations": {**opted_in, **(annotations or {})},
            **({} if owner is None else {"ownerReferences": [{"name": "x", "uid": "o", "controller": True, **owner}]}),
        },
        "spec": {**size, "template": {"spec": {"containers": [{"name": "train"}]}}, **spec},
        "status": {"startTime": "2023-11-14T22:23:20Z"},
    }


def _read(manifest: Any) -> ReplicatedJob:
    return KIND.decode(msgspec.json.encode(manifest))


def _pod(index: int, letters: str = "x7k2p", *, phase: str = "Running", **metadata: Any) -> Pod:
    body = {
        "metadata": {
            "name": f"bert-{index}-{letters}",
            "generateName": f"bert-{index}-",
            "namespace": "team",
            "uid": letters,
            "resourceVersion": "8",
            "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
            **metadata,
        },
        "spec": {"nodeName": "node", "hostname": f"bert-{index}", "containers": []},
        "status": {"phase": phase},
    }
    return read_pod(msgspec.json.encode(body), KIND.pod_labels)


def _observed(manifest: Any, *pods: Pod) -> SupervisedJob | None:
    return KIND.observe(JobState.of(KIND, NAME, _read(manifest), pods), None, 1_700_001_000.0)


def test_the_hosts_of_a_job_are_its_indices() -> None:
    """Before the pods are there, and whatever their names are then; none of them can leave."""
    waiting, running = _observed(_job()), _observed(_job(), *map(_pod, range(3)))
    assert waiting is not None
    assert running is not None
    assert not waiting.observed.running
    assert running.observed.running
    assert waiting.observed.hosts == running.observed.hosts == {Host(f"bert-{index}") for index in range(3)}
    assert Capability.FIXED_HOSTS in running.spec.capabilities


def test_a_job_that_was_resumed_smaller_keeps_the_size_that_it_asked_for() -> None:
    value = _observed(_job(annotations={f"{PREFIX}requested-workers": "4"}))
    assert value is not None
    assert (value.spec.min_workers, value.spec.requested_workers) == (2, 4)


@pytest.mark.parametrize(
    "policy",
    [
        {"maxFailedIndexes": 3, "backoffLimitPerIndex": 1},
        {"successPolicy": {"rules": [{"succeededCount": 3}]}},
    ],
)
def test_a_job_whose_policies_count_indices_keeps_its_size(policy: dict[str, Any]) -> None:
    """The API server would refuse a smaller one, again and again."""
    value = _observed(_job(**policy))
    assert value is not None
    assert (value.spec.min_workers, value.spec.requested_workers) == (3, 3)


@pytest.mark.parametrize(
    ("owner", "is_supervised"),
    [
        ({"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob"}, False),
        ({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}, False),
        ({"apiVersion": "batch/v1", "kind": "CronJob"}, True),
        ({"apiVersion": "example.com/v1", "kind": "CronJob"}, False),
        ({"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "controller": False}, True),
    ],
)
def test_a_job_that_is_a_part_of_another_job_is_not_supervised(owner: dict[str, Any], *, is_supervised: bool) -> None:
    """Its owner suspends it. The jobs that a CronJob makes are jobs of their own."""
    assert (_observed(_job(owner=owner)) is not None) is is_supervised


@pytest.mark.parametrize(
    "spec",
    [
        {"parallelism": 2},
        {"completionMode": "NonIndexed"},
        {"completions": None},
        {"parallelism": 0, "completions": 0},
        {"parallelism": "many"},
        {"template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "x"}}}]}}},
    ],
    ids=["in turn", "not indexed", "unbounded", "empty", "unreadable", "no amount"],
)
def test_pods_that_do_not_run_together_are_no_run(spec: dict[str, Any]) -> None:
    assert _observed(_job(**spec)) is None


def test_a_job_that_a_person_has_suspended_is_left_alone() -> None:
    """The supervisor's own suspension is taken up again."""
    assert _observed(_job(suspend=True)) is None
    value = _observed(_job(suspend=True, annotations=_OURS))
    assert value is not None
    assert value.decision.phase is Phase.SUSPENDED


def test_another_controller_runs_its_own_jobs() -> None:
    for manager, elsewhere in {"kueue.x-k8s.io/multikueue": True, "kubernetes.io/job-controller": False}.items():
        state = JobState.of(KIND, NAME, _read(_job(managedBy=manager)), [])
        assert state.job.elsewhere is elsewhere


@pytest.mark.parametrize(("condition", "result"), [("Complete", Result.SUCCEEDED), ("Failed", Result.FAILED)])
def test_a_job_ends_as_its_controller_says(condition: str, result: Result) -> None:
    known = _observed(_job())
    assert known is not None
    ended = _job()
    ended["status"]["conditions"] = [{"type": condition, "status": "True"}]
    value = KIND.observe(JobState.of(KIND, NAME, _read(ended), []), known, 1_700_001_000.0)
    assert value is not None
    assert value.observed.result is result
    assert _observed(ended) is None
