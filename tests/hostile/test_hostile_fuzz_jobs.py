"""Whatever tenants write into the objects of jobs, each job is read, stored and planned without an error."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from supervisor.decide.plan import plan
from supervisor.decide.policy import Policy
from supervisor.decide.situation import JobFacts
from supervisor.domain.ids import cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.jobs.kind import AnyKind, JobState
from supervisor.jobs.registry import RESOURCES
from supervisor.store.codec import job_codec
from tests.supervisor.decide.decide_builders import T0
from tests.supervisor.jobs.every_kind import BY_NAME, OPTED_IN, PREFIX, SIZED, TEMPLATE, spec_of

_EDGES: tuple[Any, ...] = (None, -1, 10**9, 10**300, 5e-324, "9" * 5000, "9999-12-31T23:59:59-14:00", [None], {})
_CODEC = job_codec("home", lambda: T0, RESOURCES)
_AT = "2023-11-14T22:13:20Z"
_POD = {
    "metadata": {"annotations": {f"{PREFIX}max-wait-time": "600", f"{PREFIX}min-workers": "2"}},
    "spec": {
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "name": "main",
                "command": ["horovodrun", "--max-np", "4"],
                "env": [{"name": "minWorkers", "value": "1"}, {"name": "workers", "value": "3"}],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ],
        "tolerations": [{"key": "a", "operator": "Exists"}],
    },
}
_SIZES = '{"tasks": [{"name": "worker", "replicas": 3, "minAvailable": 3}], "minAvailable": 3}'
_ANNOTATIONS = {
    **OPTED_IN,
    **{f"{PREFIX}{name}": "1" for name in ("requested-workers", "suspensions", "worker-multiple", "stop")},
    f"{PREFIX}requested-sizes": _SIZES,
}
_POLICIES = {
    "runPolicy": {"suspend": False},
    "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
    "slotsPerWorker": 2,
    "suspend": False,
    "minAvailable": 3,
    "policies": [{"event": "PodFailed", "action": "RestartJob"}],
}
_STATUS = {
    "phase": "Running",
    "startTime": _AT,
    "restartCount": 1,
    "restarts": 0,
    "version": 0,
    "targetWorkers": ["bert-worker-0"],
    "replicaStatuses": {"Launcher": {"failed": 1}},
    "conditions": [
        {"type": "Running", "status": "True", "lastTransitionTime": _AT},
        {"type": "Suspended", "status": "False", "lastTransitionTime": _AT},
    ],
}


def _manifest(kind: str) -> dict[str, Any]:
    bare, full = msgspec.json.encode(TEMPLATE), msgspec.json.encode(_POD)
    spec = msgspec.json.decode(msgspec.json.encode(spec_of(kind, 3)).replace(bare, full))
    metadata = {"name": "bert", "namespace": "team", "uid": "job-uid", "resourceVersion": "7", "creationTimestamp": _AT}
    return {"metadata": {**metadata, "annotations": _ANNOTATIONS}, "spec": {**spec, **_POLICIES}, "status": _STATUS}


def _changed(value: Any) -> Iterator[Any]:
    """The value with each part of it, one after the other, replaced by each edge."""
    yield from _EDGES
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        for part in _changed(each):
            if isinstance(value, dict):
                yield {**value, key: part}
            else:
                yield [*value[:key], part, *value[key + 1 :]]


def _follow(kind: AnyKind, data: bytes, known: SupervisedJob | None) -> SupervisedJob | None:
    """Reads a job, stores it in a custom resource and plans it."""
    job = kind.decode(data)
    state = JobState.of(kind, cluster_job("team", kind.name, "bert"), job, [])
    value = kind.observe(state, known, T0)
    if value is not None:
        plan(value, JobFacts(), T0 + 5, Policy())
        msgspec.json.encode(_CODEC.encode(value, None, 1))
    return value


@pytest.mark.parametrize("kind", SIZED)
def test_no_part_of_a_job_stops_the_supervisor(kind: str) -> None:
    """A job that is no Kubernetes object is refused; everything else is a job."""
    how, original = BY_NAME[kind], _manifest(kind)
    known = _follow(how, msgspec.json.encode(original), None)
    assert known is not None
    for part in ("spec", "status"):
        for changed in _changed(original[part]):
            value = _follow(how, msgspec.json.encode({**original, part: changed}), known)
            assert value is None or 0 <= value.observed.restarts < 2**31
    for annotations in _changed(original["metadata"]["annotations"]):
        data = msgspec.json.encode({**original, "metadata": {**original["metadata"], "annotations": annotations}})
        try:
            _follow(how, data, known)
        except msgspec.ValidationError:
            assert not isinstance(annotations, dict) or not all(isinstance(each, str) for each in annotations.values())
