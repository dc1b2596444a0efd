"""What a Job of Volcano and its pods are taken for, and which writes change its sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from supervisor.cluster.objects import Pod, read_pod
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Capability, Phase, Result, SupervisedJob
from supervisor.jobs.kind import JobPodRole, JobReference, JobState
from supervisor.jobs.vcjob.kind import VCJOB, TaskSize, VolcanoJob, VolcanoSizes

KIND = VCJOB
NAME = JobName("team/vcjob.bert")
PREFIX = "job-supervisor.kube-ai.io/"
NOW = 1_700_001_000.0
TASKS = {"ps": 1, "worker": 3}
SIZES = VolcanoSizes(
    tasks=(TaskSize(name="ps", replicas=1, min_available=1), TaskSize(name="worker", replicas=3, min_available=3)),
    min_available=3,
)
_RECORDED = msgspec.json.encode(SIZES).decode("ascii")
SUSPENDED = {f"{PREFIX}suspended-by": "elastic-job-supervisor", f"{PREFIX}requested-sizes": _RECORDED}


def _job(
    tasks: Mapping[str, int] = TASKS,
    *,
    gang: int = 3,
    policies: Sequence[Mapping[str, Any]] = (),
    status: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> VolcanoJob:
    pod = {"spec": {"containers": [{"name": "main"}]}}
    sizes = [{"name": name, "replicas": size, "minAvailable": size, "template": pod} for name, size in tasks.items()]
    manifest = {
        "metadata": {
            "name": "bert",
            "namespace": "team",
            "uid": "job-uid",
            "resourceVersion": "7",
            "creationTimestamp": "2023-11-14T22:23:20Z",
            "annotations": {f"{PREFIX}managed-by-job-supervisor": "true", **(annotations or {})},
        },
        "spec": {"minAvailable": min(gang, sum(tasks.values())), "tasks": sizes, "policies": list(policies)},
        "status": {"state": {"phase": "Running"}, **(status or {})},
    }
    return KIND.decode(msgspec.json.encode(manifest))


def _pod(name: str, group: str = "batch.volcano.sh/v1alpha1") -> Pod:
    owner = {"apiVersion": group, "kind": "Job", "name": "bert", "uid": "job-uid", "controller": True}
    body: dict[str, Any] = {
        "metadata": {
            "name": f"bert-{name}",
            "namespace": "team",
            "uid": f"{name}-uid",
            "resourceVersion": "8",
            "labels": {"volcano.sh/task-spec": name.partition("-")[0]},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "node", "containers": []},
        "status": {"phase": "Running"},
    }
    return read_pod(msgspec.json.encode(body), KIND.pod_labels)


PODS = [_pod(name) for name in ("ps-0", "worker-0", "worker-1", "worker-2")]


def _observed(job: VolcanoJob, *pods: Pod, known: SupervisedJob | None = None) -> SupervisedJob | None:
    return KIND.observe(JobState.of(KIND, NAME, job, pods), known, NOW)


def _supervised(job: VolcanoJob, *pods: Pod, known: SupervisedJob | None = None) -> SupervisedJob:
    value = _observed(job, *pods, known=known)
    assert value is not None
    return value


def test_the_pods_of_all_tasks_are_workers_of_a_run_that_needs_each_of_them() -> None:
    value = _supervised(_job(), *PODS)
    assert (value.spec.min_workers, value.spec.requested_workers, value.spec.max_workers) == (3, 4, 4)
    assert Capability.FIXED_HOSTS in value.spec.capabilities
    assert value.observed.hosts == {Host(pod.key.name) for pod in PODS}
    assert (value.decision.phase, value.observed.instance) == (Phase.RUNNING, "0.0")


def test_a_job_with_fewer_pods_in_its_gang_runs_with_fewer() -> None:
    """At least one pod of the task that is scaled stays."""
    assert _supervised(_job({"ps": 2, "worker": 1}, gang=1)).spec.min_workers == 3
    assert _supervised(_job({"ps": 1, "worker": 3}, gang=1)).spec.min_workers == 2


def test_pods_belong_to_the_job_of_this_group() -> None:
    """Kubernetes has Jobs, too."""
    assert KIND.reference(_pod("worker-0")) == JobReference(NAME, "job-uid")
    assert KIND.reference(_pod("worker-0", "batch/v1")) is None
    assert KIND.role({"volcano.sh/task-spec": "ps"}) is JobPodRole.WORKER
    assert KIND.role({}) is None


def test_a_suspended_job_still_asks_for_its_sizes() -> None:
    value = _supervised(_job({"ps": 0, "worker": 0}, annotations=SUSPENDED), known=_supervised(_job(), *PODS))
    assert (value.spec.min_workers, value.spec.requested_workers) == (3, 4)
    assert not value.observed.running


def test_a_job_that_runs_with_fewer_pods_still_asks_for_all() -> None:
    annotations = {f"{PREFIX}requested-sizes": _RECORDED, f"{PREFIX}requested-workers": "4"}
    job = _job({"ps": 1, "worker": 2}, annotations={**annotations, f"{PREFIX}suspensions": "1"})
    value = _supervised(job, *PODS[:3])
    assert (value.spec.min_workers, value.spec.requested_workers) == (3, 4)
    assert value.observed.instance == "1.0"


@pytest.mark.parametrize("change", [{"version": 1}, None])
def test_each_start_is_a_new_run(change: dict[str, int] | None) -> None:
    """Also one by Volcano itself, which counts those."""
    known = _supervised(_job(), *PODS)
    again = _job(status=change) if change else _job(annotations={f"{PREFIX}suspensions": "1"})
    assert _supervised(again, *PODS, known=known).observed.run == known.observed.run + 1


@pytest.mark.parametrize(
    ("job", "pods"),
    [
        (_job({"ps": 0, "worker": 0}), []),
        (_job({"ps": 0, "worker": 0}, annotations={f"{PREFIX}requested-sizes": '{"tasks": []}'}), []),
        (_job({}), []),
        (_job(status={"state": {"phase": "Aborted"}}), PODS),
        (_job(policies=[{"event": "PodEvicted", "action": "AbortJob"}]), PODS),
        (_job(policies=[{"events": ["PodFailed", "*"], "action": "TerminateJob"}]), PODS),
        (KIND.decode(b'{"metadata": {"name": "bert", "uid": "u", "resourceVersion": "7"}, "spec": {"tasks": 1}}'), []),
    ],
)
def test_jobs_of_nobody_are_left_alone(job: VolcanoJob, pods: list[Pod]) -> None:
    """Emptied or aborted by a person, ended by its own policy when it is suspended, or not understood."""
    assert _observed(job, *pods) is None


def test_a_policy_for_other_events_does_not_matter() -> None:
    policies = [{"event": "PodFailed", "action": "AbortJob"}, {"event": "PodEvicted", "action": "RestartJob"}]
    assert _observed(_job(policies=policies), *PODS) is not None


@pytest.mark.parametrize(
    ("phase", "result"), [("Completed", Result.SUCCEEDED), ("Failed", Result.FAILED), ("Terminated", Result.FAILED)]
)
def test_it_ends_as_volcano_says(phase: str, result: Result) -> None:
    known = _supervised(_job(), *PODS)
    assert _supervised(_job(status={"state": {"phase": phase}}), known=known).observed.result is result


def test_only_the_task_of_workers_is_scaled_and_the_gang_with_it() -> None:
    """The minimum of a gang is never above its size: Volcano would refuse that."""
    smaller = SIZES.resized(2)
    assert [(task.replicas, task.min_available) for task in smaller.tasks] == [(1, 1), (1, 1)]
    assert (smaller.min_available, smaller.total) == (2, 2)
    assert SIZES.resized(4) == SIZES
    assert {operation["value"] for operation in SIZES.resized(0).operations} == {0}


def test_without_a_task_of_workers_the_largest_is_scaled() -> None:
    tasks = (
        TaskSize(name="head", replicas=1, min_available=1),
        TaskSize(name="node", replicas=4, min_available=4),
    )
    assert VolcanoSizes(tasks=tasks, min_available=5).scaled == "node"


def test_a_job_that_a_person_resumes_waits_from_then_on() -> None:
    """Volcano notes no resume, and a time limit that counted from the job's creation would end it at once."""
    resumed = _supervised(_job(annotations={**SUSPENDED, f"{PREFIX}job-status": "timeout"}))
    assert (resumed.decision.phase, resumed.decision.waiting_since) == (Phase.WAITING, NOW)
