"""The stand-ins for a cluster's operator and nodes, as far as no cluster is needed to see what they do."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from simulator.cluster.horovodrun import launcher_command
from simulator.et_operator.names import INDEX_LABEL, ROLE_LABEL, SUSPEND_ANNOTATION, ReconcileStep, TrainingJobPhase
from simulator.et_operator.objects import (
    JobSpec,
    Meta,
    OperatedTrainingJob,
    OperatorPod,
    PodStatus,
    ReplicaSpecs,
    TrainingJobCondition,
    TrainingJobReplicas,
    TrainingJobStatus,
)
from simulator.et_operator.reconcile import MakeLauncher, MakeWorker, OperatedJob, Remove, WriteHosts, reconcile
from simulator.et_operator.settings import AS_OBSERVED, OperatorSettings

_NOW = "2026-01-01T00:00:00Z"


def _pod(name: str, phase: str = "Running") -> OperatorPod:
    role = "launcher" if name.endswith("launcher") else "worker"
    labels = {ROLE_LABEL: role, INDEX_LABEL: name.rpartition("-")[2] if role == "worker" else "-1"}
    return OperatorPod(Meta(name=name, uid=name, resource_version="1", namespace="n", labels=labels), PodStatus(phase))


def _job(
    status: TrainingJobStatus, *, replicas: int = 2, policy: str = "Never", suspended: bool = False
) -> OperatedTrainingJob:
    annotations = {SUSPEND_ANNOTATION: "true"} if suspended else {}
    spec = JobSpec(ReplicaSpecs(TrainingJobReplicas(), TrainingJobReplicas(replicas, policy)), "OnFailure")
    return OperatedTrainingJob(Meta(name="j", uid="u", resource_version="1", annotations=annotations), spec, status)


def _running(**more: object) -> TrainingJobStatus:
    status = {
        "phase": TrainingJobPhase.RUNNING.value,
        "targetWorkers": ["j-worker-0", "j-worker-1"],
        "currentWorkers": [],
    }
    conditions = [{"type": ReconcileStep.LAUNCHER_CREATED.value, "status": "True"}]
    return msgspec.convert({**status, "conditions": conditions, **more}, TrainingJobStatus)


def _actions(snapshot: OperatedJob, settings: OperatorSettings = AS_OBSERVED) -> list[object]:
    outcome = reconcile(snapshot, settings, _NOW)
    return [] if outcome is None else list(outcome.actions)


def _two(*workers: OperatorPod, status: TrainingJobStatus, **job: object) -> OperatedJob:
    hosts = frozenset({"j-worker-0", "j-worker-1"})
    return OperatedJob(_job(status, **job), workers, _pod("j-launcher"), hosts)  # type: ignore[arg-type]


def test_a_launcher_is_made_when_every_target_runs_and_not_before() -> None:
    made = TrainingJobStatus(
        "Created", conditions=_done(ReconcileStep.WORKERS_CREATED), target_workers=["j-worker-0", "j-worker-1"]
    )
    waiting = OperatedJob(_job(made), (_pod("j-worker-0"), _pod("j-worker-1", "Pending")), None, None)
    ready = OperatedJob(_job(made), (_pod("j-worker-0"), _pod("j-worker-1")), None, None)
    assert _actions(waiting) == []
    assert _actions(ready) == [MakeLauncher(frozenset({"j-worker-0", "j-worker-1"}))]


@pytest.mark.parametrize("phase", ["Created", "Running", "Succeeded", "Failed"])
def test_the_annotation_empties_a_job_in_whatever_phase(phase: str) -> None:
    pods = (_pod("j-worker-0"), _pod("j-worker-1"))
    outcome = reconcile(_two(*pods, status=TrainingJobStatus(phase), suspended=True), AS_OBSERVED, _NOW)
    assert outcome is not None
    assert outcome.actions == (*map(Remove, pods), Remove(_pod("j-launcher")))
    assert outcome.status.phase == TrainingJobPhase.SUSPENDED


def test_there_is_no_way_out_of_suspended() -> None:
    assert reconcile(OperatedJob(_job(TrainingJobStatus("Suspended")), (), None, None), AS_OBSERVED, _NOW) is None


def test_a_lost_worker_leaves_the_list_first_and_is_then_replaced_under_a_new_number() -> None:
    """Where the job asks for it; the host list is rewritten without it at once."""
    left = _pod("j-worker-1")
    before = _two(left, status=_running(), policy="Always")
    assert _actions(before) == [WriteHosts(_pod("j-launcher"), frozenset({"j-worker-1"}))]
    after = OperatedJob(before.job, (left,), before.launcher, frozenset({"j-worker-1"}), frozenset({"j-worker-4"}))
    assert _actions(after) == [MakeWorker("j-worker-5")]


def test_where_no_command_can_be_run_the_list_is_left_alone() -> None:
    assert _actions(_two(_pod("j-worker-1"), status=_running()), OperatorSettings(commands=False)) == []


def test_horovodrun_is_the_elastic_launcher_with_the_same_bounds() -> None:
    """As Arena writes its command; each process is started by way of its own pod."""
    words = (
        "--log-level DEBUG --verbose -np 2 --min-np 1 --max-np 4 --host-discovery-script /d.sh python train.py --lr 1"
    )
    assert (
        launcher_command(words.split())[1:]
        == (
            "-m simulator.elastic.launcher --start-workers 2 --min-workers 1 --max-workers 4 --discovery /d.sh"
            f" --below-min-timeout 600 -- {sys.executable} -m simulator.cluster.ssh -- python train.py --lr 1"
        ).split()
    )


def test_a_process_on_a_host_has_the_files_of_its_own_pod(tmp_path: Path) -> None:
    (tmp_path / "pods" / "uid").mkdir(parents=True)
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "j-worker-3").symlink_to(tmp_path / "pods" / "uid")
    ours = {"SIM_HOSTS": str(tmp_path / "hosts"), "HOROVOD_HOSTNAME": "j-worker-3", "KUBEAI_DIR": "the launcher's"}
    command = [sys.executable, "-m", "simulator.cluster.ssh", "--", "sh", "-c", "echo $KUBEAI_DIR $KEPT"]
    said = subprocess.run(
        command, env={**os.environ, **ours, "KEPT": "kept"}, check=True, capture_output=True, text=True
    )
    assert said.stdout.split() == [str(tmp_path / "pods" / "uid" / "kubeai"), "kept"]


def _done(*steps: ReconcileStep) -> list[TrainingJobCondition]:
    return [TrainingJobCondition(step.value, "True") for step in steps]
