"""An MPIJob and its pods as mpi-operator makes them, in our own words."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from supervisor.cluster.objects import Pod, read_pod
from supervisor.domain.ids import JobName
from supervisor.jobs.kind import JobState
from supervisor.jobs.mpijob.kind import MPIJOB, MpiJob, read_mpi_job

PREFIX = "job-supervisor.kube-ai.io/"
OPTED_IN = {f"{PREFIX}managed-by-job-supervisor": "true", f"{PREFIX}min-workers": "2"}
KIND = MPIJOB
NAME = JobName("team/mpijob.bert")
MADE = 1_700_000_000.0
DISCOVERY = "--host-discovery-script /etc/mpi/discover_hosts.sh"
COMMAND = f"horovodrun -np $(wc -l </etc/mpi/hostfile) --min-np 2 {DISCOVERY} python train.py"


def spec(
    workers: int = 4, *, command: str = COMMAND, env: Mapping[str, str] | None = None, **run: Any
) -> dict[str, Any]:
    """What the job asks for; `run` is more of its run policy."""
    variables = [{"name": name, "value": value} for name, value in (env or {}).items()]
    launcher = {"name": "mpi", "command": ["sh", "-c"], "args": [command], "env": variables}
    worker = {"name": "mpi", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "slotsPerWorker": 1,
        "runPolicy": run,
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "template": {"spec": {"containers": [launcher]}}},
            "Worker": {"replicas": workers, "template": {"spec": {"containers": [worker]}}},
        },
    }


def manifest(
    *,
    annotations: Mapping[str, str] | None = None,
    asked: Mapping[str, Any] | None = None,
    conditions: Sequence[str] = (),
    status: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """One job, `bert` in the namespace `team`, of which those conditions are true."""
    told = [{"type": condition, "status": "True"} for condition in conditions]
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
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
        "status": {"conditions": told, **(status or {})},
    }


def job(**parts: Any) -> MpiJob:
    return read_mpi_job(msgspec.json.encode(manifest(**parts)))


def pod(name: str, *, phase: str = "Running", node: str | None = None, code: int | None = None, **metadata: Any) -> Pod:
    """One of the job's pods: `launcher`, or a worker by its number."""
    role = name.partition("-")[0]
    owner = (
        {"apiVersion": "batch/v1", "kind": "Job", "name": "bert-launcher", "uid": "batch-job-uid"}
        if role == "launcher"
        else {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "bert", "uid": "job-uid"}
    )
    labels = {
        "training.kubeflow.org/job-name": "bert",
        "training.kubeflow.org/job-role": role,
        "training.kubeflow.org/operator-name": "mpi-operator",
    }
    body = {
        "metadata": {
            "name": f"bert-{name}",
            "namespace": "team",
            "uid": f"{name}-uid",
            "resourceVersion": "8",
            "labels": {**labels, **metadata.pop("labels", {})},
            "ownerReferences": [{**owner, "controller": True}],
            **metadata,
        },
        "spec": {
            "nodeName": f"node-of-{name}" if node is None else node,
            "restartPolicy": "Never",
            "containers": [],
        },
        "status": {
            "phase": phase,
            "containerStatuses": [] if code is None else [{"state": {"terminated": {"exitCode": code}}}],
        },
    }
    return read_pod(msgspec.json.encode(body), KIND.pod_labels)


def workers(count: int) -> list[Pod]:
    """The first so many, all of which run."""
    return [pod(f"worker-{number}") for number in range(count)]


def state(*pods: Pod, **parts: Any) -> JobState[MpiJob]:
    return JobState.of(KIND, NAME, job(**parts), pods)


def running(count: int = 4, **parts: Any) -> JobState[MpiJob]:
    """A job that trains."""
    return state(*workers(count), pod("launcher-x7k2p"), **parts)
