"""Which annotations of KubeQueue and koord-queue hold a job back."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from supervisor.cluster.objects import Pod, read_pod
from supervisor.domain.ids import JobName
from supervisor.jobs.batchjob.kind import BATCHJOB
from supervisor.jobs.kind import AnyKind, JobState
from supervisor.jobs.pytorchjob.kind import PYTORCHJOB
from supervisor.jobs.queues.kubequeue import admission
from supervisor.jobs.trainingjob.kind import TRAININGJOB

_SUSPEND = "scheduling.x-k8s.io/suspend"
_ENQUEUED = "koord-queue/job-has-enqueued"
_DEQUEUED = "koord-queue/job-dequeue-timestamp"
_KINDS: tuple[AnyKind, ...] = (PYTORCHJOB, TRAININGJOB, BATCHJOB)


def _state(kind: AnyKind, annotations: Mapping[str, str], spec: Mapping[str, Any], *pods: Pod) -> JobState[Any]:
    metadata = {"name": "bert", "namespace": "team", "uid": "u", "resourceVersion": "7", "annotations": annotations}
    job = kind.decode(msgspec.json.encode({"metadata": metadata, "spec": spec}))
    return JobState.of(kind, JobName(f"team/{kind.name}.bert"), job, pods)


def _pod(**metadata: str) -> Pod:
    named = {"name": "bert-0", "namespace": "team", "uid": "p", "resourceVersion": "8", **metadata}
    return read_pod(msgspec.json.encode({"metadata": named, "spec": {"containers": []}}), frozenset())


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name)
def test_its_annotation_holds_a_job_of_any_kind(kind: AnyKind) -> None:
    """Until it is taken away or changed; the annotations of other programs are not kept."""
    held = admission(_state(kind, {_SUSPEND: "true", "note": "long"}, {}))
    assert held is not None
    assert held.held == "The job waits in its queue (KubeQueue)."
    assert admission(_state(kind, {_SUSPEND: "false"}, {})) is None
    assert admission(_state(kind, {}, {})) is None


@pytest.mark.parametrize(
    ("annotations", "is_held"),
    [
        ({_ENQUEUED: "true"}, True),
        ({_ENQUEUED: "true", _DEQUEUED: ""}, True),
        ({_ENQUEUED: "true", _DEQUEUED: "2026-11-23 14:00:00 +0000 UTC"}, False),
        ({_ENQUEUED: "maybe"}, False),
        ({_DEQUEUED: ""}, False),
    ],
)
def test_jobs_of_kubernetes_are_held_from_one_mark_to_the_next(
    annotations: Mapping[str, str], *, is_held: bool
) -> None:
    """koord-queue empties the second mark of a Job that it preempts."""
    state = _state(BATCHJOB, annotations, {"suspend": True, "template": {}})
    assert (admission(state) is not None) is is_held


def test_a_controller_that_knows_no_queue_runs_the_job() -> None:
    """Then nobody holds it, whatever is annotated. Pods that are being deleted are those of a preempted job."""
    kind, annotated = TRAININGJOB, {_SUSPEND: "true"}
    assert admission(_state(kind, annotated, {}, _pod())) is None
    leaving = _pod(deletionTimestamp="2026-11-23T14:00:00Z")
    assert admission(_state(kind, annotated, {}, leaving)) is not None


def test_a_preempted_job_is_held_before_its_pods_go() -> None:
    """The queue has suspended it in the same write, so it is not taken for a job that a person has suspended."""
    worker = {"replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch"}]}}}
    spec = {"pytorchReplicaSpecs": {"Worker": worker}, "runPolicy": {"suspend": True}}
    assert admission(_state(PYTORCHJOB, {_SUSPEND: "true"}, spec, _pod())) is not None
