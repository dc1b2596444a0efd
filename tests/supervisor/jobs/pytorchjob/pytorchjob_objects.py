"""A PyTorchJob and its pods as training-operator makes them, in our own words."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from supervisor.cluster.objects import Pod, read_pod
from supervisor.domain.ids import JobName
from supervisor.jobs.kind import JobState
from supervisor.jobs.pytorchjob.kind import PYTORCHJOB
from supervisor.jobs.replicated import ReplicatedJob

PREFIX = "job-supervisor.kube-ai.io/"
OPTED_IN = {f"{PREFIX}managed-by-job-supervisor": "true"}
KIND = PYTORCHJOB
NAME = JobName("team/pytorchjob.bert")
MADE = 1_700_000_000.0
STARTED = {"startTime": "2023-11-14T22:23:20Z"}
ELASTIC_POLICY = {"minReplicas": 2, "maxReplicas": 6, "rdzvBackend": "kubeai"}


def spec(
    workers: int = 4,
    *,
    master: bool = False,
    elastic: Mapping[str, Any] | None = None,
    restart_policy: str = "OnFailure",
    command: Sequence[str] = ("torchrun", "train.py"),
    **run: Any,
) -> dict[str, Any]:
    """What the job asks for; `run` is its run policy."""
    container = {"name": "pytorch", "command": command, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    replicas = {"restartPolicy": restart_policy, "template": {"spec": {"containers": [container]}}}
    specs = {"Worker": {"replicas": workers, **replicas}, **({"Master": replicas} if master else {})}
    asked: dict[str, Any] = {"runPolicy": run, "pytorchReplicaSpecs": specs}
    return asked if elastic is None else {**asked, "elasticPolicy": elastic}


def job(
    *,
    annotations: Mapping[str, str] | None = None,
    asked: Mapping[str, Any] | None = None,
    conditions: Sequence[str] = (),
    status: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> ReplicatedJob:
    """One job, `bert` in the namespace `team`, of which those conditions are true."""
    told = [{"type": condition, "status": "True"} for condition in conditions]
    manifest = {
        "metadata": {
            "name": "bert",
            "namespace": "team",
            "uid": "job-uid",
            "resourceVersion": "7",
            "creationTimestamp": "2023-11-14T22:13:20Z",
            "annotations": dict(OPTED_IN if annotations is None else annotations),
            **metadata,
        },
        "spec": spec(elastic=ELASTIC_POLICY) if asked is None else asked,
        "status": {"conditions": told, **(status or {})},
    }
    return KIND.decode(msgspec.json.encode(manifest))


def pod(name: str, *, phase: str = "Running", node: str | None = None, **metadata: Any) -> Pod:
    """One of the job's pods, such as `worker-0`."""
    body = {
        "metadata": {
            "name": f"bert-{name}",
            "namespace": "team",
            "uid": f"{name}-uid",
            "resourceVersion": "8",
            "labels": {"training.kubeflow.org/replica-type": name.partition("-")[0]},
            "ownerReferences": [
                {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "bert", "uid": "job-uid"}
                | {"controller": True}
            ],
            **metadata,
        },
        "spec": {"nodeName": f"node-of-{name}" if node is None else node, "containers": []},
        "status": {"phase": phase},
    }
    return read_pod(msgspec.json.encode(body), KIND.pod_labels)


def workers(count: int) -> list[Pod]:
    """The first so many, all of which run."""
    return [pod(f"worker-{number}") for number in range(count)]


def state(*pods: Pod, **parts: Any) -> JobState[ReplicatedJob]:
    return JobState.of(KIND, NAME, job(**parts), pods)


def running(count: int = 4, **parts: Any) -> JobState[ReplicatedJob]:
    """A job that trains."""
    return state(*workers(count), **{"status": STARTED, **parts})
