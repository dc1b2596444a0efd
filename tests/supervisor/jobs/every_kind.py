"""Jobs of every kind as their users write them, and how the supervisor reads them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from supervisor.domain.ids import cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.jobs.kind import AnyKind, JobState
from supervisor.jobs.registry import KINDS
from tests.supervisor.decide.decide_builders import T0

PREFIX = "job-supervisor.kube-ai.io/"
OPTED_IN = {f"{PREFIX}managed-by-job-supervisor": "true"}
BILLION = 10**9

BY_NAME: Mapping[str, AnyKind] = {kind.name: kind for kind in KINDS}
TEMPLATE: Mapping[str, Any] = {"spec": {"containers": [{"name": "main"}]}}


def replicas(size: int) -> dict[str, Any]:
    return {"replicas": size, "template": TEMPLATE}


def replicated_job(size: int, parallelism: int = 1, name: str = "worker") -> dict[str, Any]:
    job = {"completionMode": "Indexed", "parallelism": parallelism, "completions": parallelism, "template": TEMPLATE}
    return {"name": name, "replicas": size, "template": {"spec": job}}


def spec_of(kind: str, size: int) -> dict[str, Any]:
    """The spec of a job of so many workers, as its users write it."""
    workers = replicas(size)
    specs: dict[str, dict[str, Any]] = {
        "trainingjob": {"etReplicaSpecs": {"launcher": replicas(1), "worker": workers}},
        "mpijob": {"mpiReplicaSpecs": {"Launcher": replicas(1), "Worker": workers}},
        "pytorchjob": {"pytorchReplicaSpecs": {"Worker": workers}, "elasticPolicy": {"maxReplicas": BILLION}},
        "tfjob": {"tfReplicaSpecs": {"Worker": workers}},
        "vcjob": {"tasks": [{"name": "worker", **workers}]},
        "jobset": {"replicatedJobs": [replicated_job(size)]},
        "batchjob": {"completionMode": "Indexed", "parallelism": size, "completions": size, "template": TEMPLATE},
    }
    return specs[kind]


SIZED = [kind.name for kind in KINDS if kind.name != "trainjob"]


def manifest(
    spec: Mapping[str, Any], annotations: Mapping[str, str], status: Mapping[str, Any], name: str = "bert"
) -> bytes:
    metadata = {"name": name, "namespace": "team", "uid": "job-uid", "resourceVersion": "7"}
    return msgspec.json.encode({"metadata": {**metadata, "annotations": annotations}, "spec": spec, "status": status})


def observed(  # noqa: PLR0913 - the last ones have defaults
    kind: str,
    spec: Mapping[str, Any],
    annotations: Mapping[str, str] = OPTED_IN,
    *,
    known: SupervisedJob | None = None,
    status: Mapping[str, Any] | None = None,
    name: str = "bert",
) -> SupervisedJob | None:
    how = BY_NAME[kind]
    job = how.decode(manifest(spec, annotations, status or {}, name))
    state = JobState.of(how, cluster_job("team", kind, name), job, [])
    return how.observe(state, known, T0)
