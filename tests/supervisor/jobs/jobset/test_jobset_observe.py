"""What a JobSet and its pods are taken for."""

from typing import Any

import msgspec
import pytest

from supervisor.cluster.objects import Pod, read_pod
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Capability, Phase, Result, SupervisedJob
from supervisor.identity.tokens import ProcessPrincipal
from supervisor.jobs.jobset.kind import JOBSET, JobSet
from supervisor.jobs.kind import JobReference, JobState
from supervisor.jobs.registry import POD_LABELS, process_of

KIND = JOBSET
NAME = JobName("team/jobset.bert")
PREFIX = "job-supervisor.kube-ai.io/"
_LABEL = "jobset.sigs.k8s.io/"
_MADE, _RESUMED = "2023-11-14T22:20:00Z", "2023-11-14T22:23:20Z"
_HOSTS = {Host(f"bert-worker-{job}-{pod}") for job in range(2) for pod in range(2)}


def _replicated(name: str = "worker", replicas: int = 2, **job: Any) -> dict[str, Any]:
    spec = {"completionMode": "Indexed", "parallelism": 2, "completions": 2, "template": {"spec": {"containers": []}}}
    return {"name": name, "replicas": replicas, "template": {"spec": {**spec, **job}}}


def _job(*, annotations: dict[str, str] | None = None, owner: dict[str, Any] | None = None, **spec: Any) -> Any:
    """The manifest of a running JobSet of two Jobs with two pods each."""
    opted_in = {f"{PREFIX}managed-by-job-supervisor": "true", f"{PREFIX}min-workers": "2"}
    return {
        "metadata": {
            "name": "bert",
            "namespace": "team",
            "uid": "jobset-uid",
            "resourceVersion": "7",
            "creationTimestamp": _MADE,
            "annotations": {**opted_in, **(annotations or {})},
            **({} if owner is None else {"ownerReferences": [{"name": "x", "uid": "o", "controller": True, **owner}]}),
        },
        "spec": {"replicatedJobs": [_replicated()], **spec},
    }


def _gpus(number: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(number)}
    return {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


def test_a_run_needs_room_for_the_pods_of_each_job() -> None:
    """Those that request what the largest job requests are counted with it."""
    driver = _replicated("driver", 1, parallelism=1, completions=1)
    jobs = [driver, _replicated(template=_gpus(8)), _replicated("evaluator", 1, template=_gpus(8))]
    request = _read(_job(replicatedJobs=jobs)).resource_request
    assert request is not None
    assert request.worker.requests["nvidia.com/gpu"] == 8000
    assert [("nvidia.com/gpu" in each.demand.requests, each.count) for each in request.others] == [(False, 1)]
    assert request.fixed == 1


def _read(manifest: Any) -> JobSet:
    return KIND.decode(msgspec.json.encode(manifest))


def _pod(index: int, job: str = "worker-0", *, phase: str = "Running", owner: dict[str, Any] | None = None) -> Pod:
    made = {"apiVersion": "batch/v1", "kind": "Job", "name": f"bert-{job}", "uid": "u", "controller": True}
    body = {
        "metadata": {
            "name": f"bert-{job}-{index}-x7k2p",
            "generateName": f"bert-{job}-{index}-",
            "namespace": "team",
            "uid": f"{job}-{index}",
            "resourceVersion": "8",
            "labels": {f"{_LABEL}jobset-name": "bert", f"{_LABEL}jobset-uid": "jobset-uid"},
            "ownerReferences": [{**made, **(owner or {})}],
        },
        "spec": {"nodeName": "node", "hostname": f"bert-{job}-{index}", "containers": []},
        "status": {"phase": phase},
    }
    return read_pod(msgspec.json.encode(body), POD_LABELS)


_PODS = tuple(_pod(pod, f"worker-{job}") for job in range(2) for pod in range(2))


def _observed(manifest: Any, *pods: Pod, known: SupervisedJob | None = None) -> SupervisedJob | None:
    return KIND.observe(JobState.of(KIND, NAME, _read(manifest), pods), known, 1_700_001_000.0)


def test_the_hosts_of_a_jobset_are_the_indices_of_all_its_jobs() -> None:
    """Before the pods are there, and then; none of them can leave, and there is no other size."""
    waiting, running = _observed(_job()), _observed(_job(), *_PODS)
    assert waiting is not None
    assert running is not None
    assert (waiting.observed.running, running.observed.running) == (False, True)
    assert waiting.observed.hosts == running.observed.hosts == _HOSTS
    assert Capability.FIXED_HOSTS in running.spec.capabilities
    assert (running.spec.min_workers, running.spec.requested_workers) == (4, 4)


def test_a_job_that_others_wait_for_to_end_is_no_part_of_the_run() -> None:
    """Neither while it runs nor when its pods stay for their logs. One that others want to be ready is a part."""
    worker = _replicated(replicas=2)
    for status, hosts in {"Complete": _HOSTS, "Ready": {*_HOSTS, Host("bert-data-0-0"), Host("bert-data-0-1")}}.items():
        dependent = {**worker, "dependsOn": [{"name": "data", "status": status}]}
        manifest = _job(replicatedJobs=[_replicated("data", replicas=1), dependent])
        value = _observed(manifest)
        assert value is not None
        assert value.observed.hosts == hosts
        preparing = _observed(manifest, _pod(0, "data-0"), _pod(1, "data-0"))
        assert preparing is not None
        assert not preparing.observed.running


def test_each_resume_and_each_restart_is_another_run() -> None:
    """Its controller tells of a resume a moment after the spec."""
    suspended = {"type": "Suspended", "status": "True", "lastTransitionTime": _MADE}
    resumed = {"type": "Suspended", "status": "False", "lastTransitionTime": _RESUMED}
    stages: list[dict[str, Any]] = [
        {},
        {"conditions": [suspended]},
        {"conditions": [resumed]},
        {"conditions": [resumed], "restarts": 1},
    ]
    runs = [_read({**_job(), "status": status}).run_id for status in stages]
    assert runs[1] == ""
    assert len(set(runs)) == 4
    assert _read({**_job(suspend=True), "status": stages[2]}).run_id == ""


def test_each_restart_in_place_is_another_run_of_the_same_pods() -> None:
    """Between the restart of the first pod and that of the last one there is no run."""
    stages: list[dict[str, int]] = [
        {},
        {"currentInPlaceRestartAttempt": 0},
        {"currentInPlaceRestartAttempt": 0, "previousInPlaceRestartAttempt": 0},
        {"currentInPlaceRestartAttempt": 1, "previousInPlaceRestartAttempt": 0},
        {"currentInPlaceRestartAttempt": 1, "previousInPlaceRestartAttempt": 1},
        {"currentInPlaceRestartAttempt": 2, "previousInPlaceRestartAttempt": 1},
    ]
    known, seen = None, []
    for status in stages:
        known = _observed({**_job(), "status": status}, *_PODS, known=known)
        assert known is not None
        seen.append((known.observed.run, known.observed.running))
    assert seen == [(1, True), (1, True), (1, False), (2, True), (2, False), (3, True)]


@pytest.mark.parametrize("attempt", ["many", -1, 1.5, {}])
def test_a_status_that_is_not_understood_has_no_restart_in_place(attempt: object) -> None:
    """A status may hold anything, because other writers than its controller may have the right to write it."""
    status = {"currentInPlaceRestartAttempt": attempt, "previousInPlaceRestartAttempt": attempt}
    read = _read({**_job(), "status": status})
    assert read.restarts == 0
    assert read.run_id.endswith(".0")


@pytest.mark.parametrize(
    ("owner", "is_supervised"),
    [
        ({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}, False),
        ({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "controller": False}, True),
    ],
)
def test_a_jobset_that_is_a_part_of_another_job_is_not_supervised(
    owner: dict[str, Any], *, is_supervised: bool
) -> None:
    """Its owner suspends it."""
    assert (_observed(_job(owner=owner)) is not None) is is_supervised


@pytest.mark.parametrize(
    "spec",
    [
        {"replicatedJobs": []},
        {"replicatedJobs": [_replicated(completions=4)]},
        {"replicatedJobs": [_replicated(completionMode="NonIndexed")]},
        {"replicatedJobs": [_replicated(replicas=0)]},
        {"replicatedJobs": [_replicated(parallelism="many")]},
        {"replicatedJobs": [_replicated(template={"spec": {"containers": "none"}})]},
    ],
    ids=["no job", "in turn", "not indexed", "empty", "unreadable", "no template"],
)
def test_pods_that_do_not_run_together_are_no_run(spec: dict[str, Any]) -> None:
    assert _observed(_job(**spec)) is None


def test_a_jobset_that_a_person_has_suspended_is_left_alone() -> None:
    """The supervisor's own suspension is taken up again."""
    assert _observed(_job(suspend=True)) is None
    value = _observed(_job(suspend=True, annotations={f"{PREFIX}suspended-by": "elastic-job-supervisor"}))
    assert value is not None
    assert value.decision.phase is Phase.SUSPENDED


def test_another_controller_runs_its_own_jobs() -> None:
    for manager, elsewhere in {"kueue.x-k8s.io/multikueue": True, f"{_LABEL}jobset-controller": False}.items():
        state = JobState.of(KIND, NAME, _read(_job(managedBy=manager)), [])
        assert state.job.elsewhere is elsewhere


@pytest.mark.parametrize(("condition", "result"), [("Completed", Result.SUCCEEDED), ("Failed", Result.FAILED)])
def test_a_jobset_ends_as_its_controller_says(condition: str, result: Result) -> None:
    known = _observed(_job())
    ended = {**_job(), "status": {"conditions": [{"type": condition, "status": "True"}]}}
    value = _observed(ended, known=known)
    assert value is not None
    assert value.observed.result is result


def test_a_pod_trains_for_the_jobset_that_made_its_job() -> None:
    """Not for that Job. A label alone makes no pod one of a JobSet's."""
    assert KIND.reference(_pod(0)) == JobReference(NAME, "jobset-uid")
    assert process_of(_pod(0)) == ProcessPrincipal(NAME, "jobset-uid", None, Host("bert-worker-0-0"))
    for other in ({"name": "other-0"}, {"apiVersion": "apps/v1", "kind": "ReplicaSet"}, {"controller": False}):
        assert KIND.reference(_pod(0, owner=other)) is None
