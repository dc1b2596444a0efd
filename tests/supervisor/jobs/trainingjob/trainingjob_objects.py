"""A TrainingJob and its pods as `arena submit etjob` and et-operator make them, in our own words."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from supervisor.cluster.objects import Pod, read_pod
from supervisor.domain.ids import cluster_job
from supervisor.jobs.kind import JobState
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from supervisor.jobs.trainingjob.objects import TrainingJob, read_training_job

State = JobState[TrainingJob]
PREFIX = "job-supervisor.kube-ai.io/"
OPTED_IN = {f"{PREFIX}spot-instance": "true"}
MADE = 1_700_000_000.0
COMMAND = (
    "horovodrun -np $((${workers}*${gpus})) --min-np $((${minWorkers}*${gpus})) --max-np $((${maxWorkers}*${gpus}))"
    " --host-discovery-script /etc/edl/discover_hosts.sh python train.py"
)
LABELS = frozenset({"training-job-name", "training-job-role", "replica-index", "scaleout-name"})


def spec(workers: int = 8, *, command: str = COMMAND, size: int | None = None, **more: Any) -> dict[str, Any]:
    """A job's spec; `size` is its variable `workers`, `more` belongs to the workers' part."""
    env = {"gpus": 1, "maxWorkers": 128, "minWorkers": 2, "workers": workers if size is None else size}
    container = {
        "name": "et",
        "image": "none",
        "env": [{"name": name, "value": str(value)} for name, value in env.items()],
    }
    launcher = {**container, "command": ["sh", "-c", command], "resources": {"limits": {"cpu": "4"}}}
    worker = {**container, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "restartPolicy": "OnFailure",
        "backoffLimit": 3,
        "cleanPodPolicy": "Running",
        "etReplicaSpecs": {
            "launcher": {"replicas": 1, "template": {"spec": {"containers": [launcher]}}},
            "worker": {
                "replicas": workers,
                "minReplicas": 2,
                "maxReplicas": 128,
                "restartPolicy": "Always",
                "template": {"spec": {"containers": [worker]}},
                **more,
            },
        },
    }


def manifest(
    *,
    annotations: Mapping[str, str] | None = None,
    asked: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    return {
        "apiVersion": "kai.alibabacloud.com/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": "bert",
            "namespace": "team",
            "uid": "job-uid",
            "resourceVersion": "7",
            "creationTimestamp": "2023-11-14T22:13:20Z",
            "annotations": dict(OPTED_IN if annotations is None else annotations),
            **metadata,
        },
        "spec": spec() if asked is None else asked,
        "status": status or {},
    }


def job(**parts: Any) -> TrainingJob:
    return read_training_job(msgspec.json.encode(manifest(**parts)))


def pod(name: str, *, phase: str = "Running", code: int | None = None, owner: str = "job-uid", **metadata: Any) -> Pod:
    """One of the job's pods: `launcher`, or a worker by its number."""
    role, _, index = name.partition("-")
    labels = {"training-job-name": "bert", "training-job-role": role, **({"replica-index": index} if index else {})}
    ended = [] if code is None else [{"state": {"terminated": {"exitCode": code}}}]
    body = {
        "metadata": {
            "name": f"bert-{name}",
            "namespace": "team",
            "uid": f"{name}-uid",
            "resourceVersion": "8",
            "labels": labels,
            "ownerReferences": [
                {"apiVersion": "kai.alibabacloud.com/v1alpha1", "kind": "TrainingJob", "name": "bert", "uid": owner}
                | {"controller": True}
            ],
            **metadata,
        },
        "spec": {"nodeName": f"node-of-{name}", "restartPolicy": "Never", "containers": []},
        "status": {"phase": phase, "podIP": "10.0.0.1", "containerStatuses": ended},
    }
    return read_pod(msgspec.json.encode(body), LABELS)


def workers(count: int) -> list[Pod]:
    return [pod(f"worker-{number}") for number in range(count)]


def state(one: TrainingJob, pods: Collection[Pod] = ()) -> State:
    name = cluster_job(one.metadata.namespace, "trainingjob", one.metadata.name)
    return JobState.of(TRAININGJOB, name, one, pods)


def running(count: int = 8, **parts: Any) -> State:
    return state(job(status={"phase": "Running"}, **parts), [*workers(count), pod("launcher")])
