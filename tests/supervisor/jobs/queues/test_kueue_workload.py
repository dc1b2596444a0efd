"""What a Workload of Kueue says of its job."""

from typing import Any

import msgspec
import pytest

from supervisor.domain.ids import cluster_job
from supervisor.jobs.kind import Admission
from supervisor.jobs.queues.kueue.workloads import Workload, read_workload

_MARK = {"job-supervisor.kube-ai.io/suspended-by": "elastic-job-supervisor"}
_EVICTED = ("Admitted", "QuotaReserved", "Evicted")


def _manifest(*true: str, active: bool = True, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """A Workload with these conditions true and the others false."""
    owner = {"kind": "MPIJob", "name": "j", "uid": "u", "controller": True, "apiVersion": "kubeflow.org/v2beta1"}
    metadata: dict[str, Any] = {"name": "w", "namespace": "n", "uid": "w", "resourceVersion": "7"}
    metadata |= {"ownerReferences": [owner], "annotations": annotations or {}}
    found = [{"type": kind, "status": str(kind in true), "reason": "Preempted"} for kind in (*_EVICTED, "Finished")]
    spec = {"active": active, "queueName": "gpus", "podSets": []}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": found}}


def _workload(*true: str, **parts: Any) -> Workload:
    return read_workload(msgspec.json.encode(_manifest(*true, **parts)))


def test_one_of_another_version_still_has_its_job_and_its_mark_and_holds_nothing_back() -> None:
    """Nobody stops a job because its Workload is not understood; an action finds the Workload."""
    known = _manifest("Evicted", annotations=_MARK)
    strange = read_workload(msgspec.json.encode({**known, "status": {"conditions": "none"}}))
    assert (strange.job, strange.marked, strange.admission) == (_workload().job, True, Admission())
    assert "conditions" in strange.unread


def test_it_names_its_job() -> None:
    assert _workload().job == (cluster_job("n", "mpijob", "j"), "u")


@pytest.mark.parametrize(
    ("workload", "held"),
    [
        (_workload(), "The job waits in the queue gpus of Kueue."),
        (_workload("QuotaReserved"), "The job waits in the queue gpus of Kueue."),
        (_workload("Evicted"), "The job waits in the queue gpus of Kueue."),
        (_workload(*_EVICTED), "Kueue evicts the job: Preempted."),
        (_workload(active=False), "The job's Workload was deactivated; somebody has to activate it."),
        (_workload(*_EVICTED, active=False, annotations=_MARK), ""),
        (_workload(annotations=_MARK), "The job waits in the queue gpus of Kueue."),
        (_workload("Admitted", "QuotaReserved"), ""),
        (_workload("Finished"), ""),
    ],
)
def test_it_says_why_its_job_is_held_back(workload: Workload, held: str) -> None:
    """A Workload that the supervisor has deactivated is not held by its queue."""
    assert workload.admission.held == held
