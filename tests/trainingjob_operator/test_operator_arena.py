"""Jobs and scalings as Arena writes them, of which the operator has to understand what et-operator does."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.trainingjob_operator.operator_world import World, scale, training_job
from trainingjob_operator import manifests
from trainingjob_operator.api import ScaleStatus, TrainingJob
from trainingjob_operator.changes import CreateKeys, RunScript, WriteConfig, WriteScale


def submitted(gpus: str = "", **spec: Any) -> TrainingJob:
    """A job as `arena submit etjob` writes it: no `slotsPerWorker`, but a limit of GPUs."""
    resources = {"limits": {"nvidia.com/gpu": gpus, "cpu": "8"}} if gpus else {}
    template = {"spec": {"containers": [{"name": "et", "image": "train", "resources": resources}]}}
    return training_job(2, worker={"template": template}, **spec)


def annotated(job: TrainingJob, **annotations: str) -> TrainingJob:
    return replace(job, metadata=replace(job.metadata, annotations=annotations))


@pytest.mark.parametrize(
    ("gpus", "spec", "slots"),
    [("4", {}, 4), ("4", {"slotsPerWorker": 2}, 2), ("", {}, 1), ("0", {}, 1), ("two", {}, 1), ("-1", {}, 1)],
)
def test_a_worker_has_as_many_slots_as_gpus_unless_the_job_says_another_number(
    gpus: str, spec: dict[str, Any], slots: int
) -> None:
    world = World(submitted(gpus, **spec))
    world.settle()
    [config] = [change for change in world.made if isinstance(change, WriteConfig)]
    assert config.hosts == ("job-worker-0", "job-worker-1")
    text = manifests.config_data(world.job, config.hosts)["hostfile"]
    assert text == f"job-worker-0:{slots}\njob-worker-1:{slots}\n"


@pytest.mark.parametrize("template", [{}, {"spec": None}, {"spec": {"containers": []}}, {"spec": {"containers": [7]}}])
def test_a_template_that_is_none_has_no_gpus(template: dict[str, Any]) -> None:
    assert training_job(worker={"template": template}).slots == 1


def test_a_job_that_names_a_secret_with_keys_gets_that_one_in_all_its_pods() -> None:
    world = World(annotated(submitted(), **{"arena.kubeflow.org/ssh-secret": "our-keys"}))
    world.settle()
    assert world.phase == "Running"
    assert not [change for change in world.made if isinstance(change, CreateKeys)]
    for spec in (manifests.worker_spec(world.job), manifests.launcher_spec(world.job)):
        assert [one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one] == ["our-keys"]


def test_a_job_that_names_none_gets_keys_of_its_own() -> None:
    world = World(submitted())
    world.settle()
    assert CreateKeys() in world.made
    assert manifests.ssh_secret(world.job) == "job"


def test_the_script_of_a_scale_in_runs_before_its_workers_go() -> None:
    world = World(training_job(4, slotsPerWorker=2))
    world.settle()
    world.ask(scale("in", "two", toDelete={"count": 2}, script="/bin/scaler.sh --delete", env=[], timeout=60))
    world.step()
    script, written = (change for change in world.made if isinstance(change, RunScript | WriteScale))
    assert isinstance(script, RunScript)
    assert isinstance(written, WriteScale)
    assert set(world.running) >= set(script.workers)
    assert manifests.script_command(world.job, script.scale, script.workers) == [
        *("timeout", "60", "sh", "-c", 'sh /bin/scaler.sh --delete "$0"'),
        "job-worker-2:2,job-worker-3:2",
    ]
    world.settle()
    assert [change for change in world.made if isinstance(change, RunScript)] == [script], "it runs once"
    assert world.scales["in-two"].status.phase == "ScaleSucceeded"


def test_the_script_of_a_scale_out_runs_once_its_workers_run_and_before_they_are_listed() -> None:
    world = World(training_job(2))
    world.settle()
    world.ask(scale("out", "one", toAdd={"count": 1}, script="/bin/scaler.sh", env=[{"name": "A", "value": "b c"}]))
    while not any(isinstance(change, RunScript) for change in world.made):
        assert world.listed == ["job-worker-0", "job-worker-1"]
        assert world.step() or world.kubelet()
    [script] = [change for change in world.made if isinstance(change, RunScript)]
    assert script.workers == ("job-worker-2",)
    command = manifests.script_command(world.job, script.scale, script.workers)
    assert command[:4] == ["env", "A=b c", "timeout", "60"]
    world.settle()
    assert world.listed == ["job-worker-0", "job-worker-1", "job-worker-2"]


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 60), (5, 5), (0, 1), (-3, 1), (86_400, 600)])
def test_a_script_may_run_as_long_as_the_scaling_says_within_bounds(timeout: int | None, seconds: int) -> None:
    spec = {} if timeout is None else {"timeout": timeout}
    assert scale("in", "x", **spec).script_seconds == seconds


def test_a_scale_in_that_et_operator_has_begun_is_finished() -> None:
    world = World(training_job(3))
    world.settle()
    begun = scale("in", "one", toDelete={"count": 1})
    status = msgspec.convert({"phase": "Scaling", "toDeletePods": ["job-worker-0"]}, ScaleStatus)
    world.ask(replace(begun, status=status))
    world.settle()
    assert world.running == ["job-worker-1", "job-worker-2"]
    assert world.scales["in-one"].status.phase == "ScaleSucceeded"
