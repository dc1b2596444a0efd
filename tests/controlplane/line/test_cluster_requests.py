"""A TrainingJob that a person suspends and resumes by annotations of its object, with that person's rights."""

from pathlib import Path
from typing import Any

import pytest

from simulator.harness import ServiceSettings
from tests.controlplane.line.line_world import LineJob, LineJobPlan, LineWorld, world
from tests.job_supervisor.cli.cli_running import run_process
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


def _conditions(supervised: Any) -> dict[str, str]:
    return {each["type"]: each["status"] for each in supervised["status"]["conditions"]}


async def _steer(one: LineWorld, verb: str, job: LineJob, *arguments: str) -> str:
    said = await run_process(verb, job.name, *arguments, "--wait", "--kubeconfig", one.here.kubeconfig)
    assert said.code == 0, said.err + said.out
    return said.out


async def test_a_job_is_saved_held_by_its_annotation_and_resumed(plane: ControlPlane, tmp_path: Path) -> None:
    """With all its nodes free it stays suspended, and it goes on without a lost step once the annotation is gone."""
    async with world(plane, tmp_path / "world", ServiceSettings()) as one:
        await one.nodes("n0", "n1", gpus=1)
        await one.connected()
        job = await one.job("j", LineJobPlan(workers=2, min_workers=2, steps=300, step_seconds=0.1))
        await one.training(job, workers=2)
        await one.decided(job, "Running")
        out = await _steer(one, "suspend", job, "--reason", "power cut", "--yes")
        assert "has suspended the job: power cut. Rank 0 has " in out
        held = await one.decided(job, "Suspended")
        conditions = _conditions(held)
        assert (conditions["Held"], conditions["Disrupted"]) == ("True", "False")
        assert "waitingSince" not in held["status"]["decision"]
        await _steer(one, "resume", job)
        status = await one.jobs.phase(job.name, "Succeeded", seconds=90)
        assert not status.get("restartCount")
        figures = one.verdict(job).figures
        assert (figures.steps_lost, figures.suspensions, figures.resumes) == (0, 1, 1)


async def test_a_drained_node_is_empty_until_it_is_undrained(plane: ControlPlane, tmp_path: Path) -> None:
    """Its agent says that all is clear; the job is saved, and resumes there once the annotations are gone."""
    async with world(plane, tmp_path / "world", ServiceSettings()) as one:
        await one.nodes("n0", "n1", gpus=1)
        await one.connected()
        job = await one.job("j", LineJobPlan(workers=2, min_workers=2, steps=300, step_seconds=0.1))
        await one.training(job, workers=2)
        await one.decided(job, "Running")
        node, where = await one.node_of("j-worker-1"), ("--kubeconfig", plane.cluster.kubeconfig)
        said = await run_process("drain", node, "--reason", "new kernel", "--wait", "--yes", *where)
        assert said.code == 0, said.err + said.out
        held = await one.decided(job, "Suspended")
        assert "j-worker-1 is drained by " in held["status"]["decision"]["reason"]
        shown = await run_process("nodes", *where)
        assert "operator" in shown.out
        assert (await one.api.get(f"/api/v1/nodes/{node}"))["spec"]["unschedulable"]
        said = await run_process("undrain", node, *where)
        assert said.code == 0, said.err
        drained = await one.api.get(f"/api/v1/nodes/{node}")
        assert not drained["spec"].get("unschedulable")
        assert not [name for name in drained["metadata"].get("annotations", {}) if "/drain" in name]
        await one.jobs.phase(job.name, "Succeeded", seconds=90)
        figures = one.verdict(job).figures
        assert (figures.steps_lost, figures.suspensions, figures.resumes) == (0, 1, 1)
