"""What a TFJob and its pods are taken for."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from supervisor.cluster.objects import Pod, read_pod
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Capability, SupervisedJob
from supervisor.jobs.kind import JobPodRole, JobState
from supervisor.jobs.replicated import ReplicatedJob, resized_role
from supervisor.jobs.tfjob.kind import SHAPE, TFJOB

KIND = TFJOB
NAME = JobName("team/tfjob.bert")
PREFIX = "job-supervisor.kube-ai.io/"
_LABEL = "training.kubeflow.org/replica-type"


def _job(sizes: Mapping[str, int], **annotations: str) -> ReplicatedJob:
    """One job with so many pods of each role; `annotations` are without prefix, with `_` for `-`."""
    ours = {f"{PREFIX}{name.replace('_', '-')}": value for name, value in annotations.items()}
    template = {"spec": {"containers": [{"name": "tensorflow"}]}}
    manifest = {
        "metadata": {
            "name": "bert",
            "namespace": "team",
            "uid": "job-uid",
            "resourceVersion": "7",
            "annotations": {f"{PREFIX}managed-by-job-supervisor": "true", **ours},
        },
        "spec": {"tfReplicaSpecs": {role: {"replicas": size, "template": template} for role, size in sizes.items()}},
        "status": {"startTime": "2023-11-14T22:23:20Z"},
    }
    return KIND.decode(msgspec.json.encode(manifest))


def _pod(name: str) -> Pod:
    body: dict[str, Any] = {
        "metadata": {
            "name": f"bert-{name}",
            "namespace": "team",
            "uid": f"{name}-uid",
            "resourceVersion": "8",
            "labels": {_LABEL: name.partition("-")[0]},
        },
        "spec": {"nodeName": "node", "containers": []},
        "status": {"phase": "Running"},
    }
    return read_pod(msgspec.json.encode(body), KIND.pod_labels)


def _observed(job: ReplicatedJob, *pods: Pod) -> SupervisedJob:
    value = KIND.observe(JobState.of(KIND, NAME, job, pods), None, 1_700_001_000.0)
    assert value is not None
    return value


def test_every_role_of_a_run_is_a_host_and_none_can_leave() -> None:
    value = _observed(_job({"Chief": 1, "PS": 1, "Worker": 2}), *map(_pod, ("chief-0", "ps-0", "worker-0", "worker-1")))
    assert value.observed.running
    assert value.observed.hosts == {Host(f"bert-{name}") for name in ("chief-0", "ps-0", "worker-0", "worker-1")}
    assert Capability.FIXED_HOSTS in value.spec.capabilities
    assert not value.spec.capabilities & {Capability.GROWS, Capability.REPLACES_HOSTS}


@pytest.mark.parametrize(
    ("annotations", "least"), [({"min_workers": "1"}, 3), ({}, 6), ({"min_workers": "9"}, 6), ({"min_workers": "x"}, 6)]
)
def test_the_minimum_is_of_workers_beside_the_other_roles(annotations: dict[str, str], least: int) -> None:
    asked = _observed(_job({"Chief": 1, "PS": 1, "Worker": 4}, **annotations)).spec
    assert (asked.min_workers, asked.requested_workers) == (least, 6)


def test_a_smaller_run_lacks_workers_and_no_other_role() -> None:
    value = _observed(_job({"PS": 2, "Worker": 1}, requested_workers="5"))
    assert value.spec.requested_workers == 5
    assert value.observed.hosts == {
        Host(f"bert-{name}") for name in ("ps-0", "ps-1", "worker-0", "worker-1", "worker-2")
    }


def test_an_evaluator_is_no_host() -> None:
    assert KIND.role({_LABEL: "evaluator"}) is None
    assert KIND.role({_LABEL: "ps"}) is JobPodRole.WORKER


_NOTEBOOKS = b"""
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: bert
  namespace: team
  uid: job-uid
  resourceVersion: "7"
  annotations: {job-supervisor.kube-ai.io/managed-by-job-supervisor: "true"}
spec:
  schedulerName: volcano
  tfReplicaSpecs:
    Ps: {replicas: 1, template: &pods {spec: {containers: [{name: tensorflow}]}}}
    Chief: {replicas: 1, template: *pods}
    worker: {replicas: 2, template: *pods}
status: {startTime: "2023-11-14T22:23:20Z"}
"""


def test_a_role_is_read_whatever_its_spelling() -> None:
    """Notebooks of Kubeflow write Ps. The operator accepts it, and gives its pods names and labels in lower case."""
    job = KIND.decode(msgspec.json.encode(msgspec.yaml.decode(_NOTEBOOKS)))
    names = ("chief-0", "ps-0", "worker-0", "worker-1")
    waiting, running = _observed(job), _observed(job, *map(_pod, names))
    assert waiting.observed.hosts == running.observed.hosts == {Host(f"bert-{name}") for name in names}
    assert (waiting.spec.requested_workers, running.observed.running) == (4, True)
    assert job.resource_request is not None


def test_a_smaller_run_is_written_under_the_name_that_the_spec_uses() -> None:
    """Another spelling would be another role to the API server."""
    job = _job({"Ps": 1, "worker": 4})
    assert job.spec is not None
    assert resized_role(job.spec, 3, field=SHAPE.replicas) == {"tfReplicaSpecs": {"worker": {"replicas": 2}}}
