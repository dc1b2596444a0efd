"""Counts how many bytes a pod of a large cluster takes."""

import tracemalloc

import msgspec

from supervisor.cluster.objects import Pod, pod_or_outline

_PODS = 2000
_PODS_A_JOB = 64
_AT_MOST_BYTES = 1500
_LABELS = frozenset({"training-job-name", "training-job-role", "replica-index"})
_ANNOTATIONS = {
    "job-supervisor.kube-ai.io/managed-by-job-supervisor": "true",
    "job-supervisor.kube-ai.io/spot-instance": "true",
    "other.example.com/note": "n" * 500,
}


def _written(number: int) -> bytes:
    job, index = divmod(number, _PODS_A_JOB)
    name = f"fine-tuning-{job}"
    owner = {"kind": "TrainingJob", "name": name, "uid": f"45716906-7e6a-4ad2-b2b8-{job:012}", "controller": True}
    metadata = {
        "name": f"{name}-worker-{index}",
        "namespace": "training",
        "uid": f"8c8d16d2-5e0b-4d0f-b7ee-{number:012}",
        "resourceVersion": str(100_000 + number),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"training-job-name": name, "training-job-role": "worker", "replica-index": str(index), "app": "a"},
        "annotations": _ANNOTATIONS,
        "ownerReferences": [{**owner, "apiVersion": "kai.alibabacloud.com/v1alpha1"}],
        "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {"f:containers": "c" * 1000}}}],
    }
    field = {"fieldRef": {"fieldPath": "metadata.annotations['job-supervisor.kube-ai.io/directive']"}}
    spec = {
        "nodeName": f"node-{number // 8}",
        "serviceAccountName": "default",
        "containers": [
            {"name": "main", "resources": {"limits": {"cpu": "12", "memory": "96Gi", "nvidia.com/gpu": "1"}}}
        ],
        "volumes": [{"name": "supervisor", "downwardAPI": {"items": [field]}}],
    }
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": f"2026-01-01T00:00:{job % 60:02}Z"}
    status = {"phase": "Running", "podIP": f"10.0.{job}.{index}", "conditions": [scheduled]}
    return msgspec.json.encode({"metadata": metadata, "spec": spec, "status": status})


def _read(numbers: range) -> list[Pod]:
    return [pod_or_outline(_written(number), _LABELS) for number in numbers]


def test_a_pod_of_a_large_cluster_takes_little_memory() -> None:
    """Values that the pods of a job have in common are kept once."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        pods = _read(range(_PODS))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / len(pods) < _AT_MOST_BYTES


def test_pods_share_what_is_equal() -> None:
    """The owner, the requests and the exposed annotations of a job's pods are the same objects."""
    one, other = _read(range(2))
    assert one.owner is other.owner
    assert one.requests is other.requests
    assert one.shown is other.shown
    assert one.requests == {"cpu": 12_000, "memory": 96 * 2**30 * 1000, "nvidia.com/gpu": 1000}
