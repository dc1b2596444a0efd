"""Fire drills of a TrainingJob run with only the supervisor's permissions."""

import asyncio
from pathlib import Path

import pytest

from simulator.harness import ServiceSettings
from tests.controlplane.line.line_world import LineJob, LineJobPlan, LineWorld, world
from tests.job_supervisor.cli.cli_running import Said, run_process
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


async def _drill(one: LineWorld, subject: str, lead: str) -> Said:
    """As `kubectl exec` into the supervisor's pod would hold it, to its end."""
    kubeconfig = one.here.kubeconfig
    said = await run_process("simulate", subject, "--lead", lead, "--wait", "--yes", "--kubeconfig", kubeconfig)
    assert said.code == 0, said.err + said.out
    return said


async def _uids(one: LineWorld) -> set[str]:
    pods = await one.api.get(f"/api/v1/namespaces/{one.namespace.name}/pods")
    return {str(pod["metadata"]["uid"]) for pod in pods["items"]}


async def _finished(one: LineWorld, job: LineJob) -> None:
    status = await one.jobs.phase(job.name, "Succeeded", seconds=90)
    assert not status.get("restartCount")
    figures = one.verdict(job).figures
    assert (figures.steps_lost, figures.suspensions) == (0, figures.resumes)


async def test_a_drill_of_a_node_suspends_a_job_and_resumes_it(plane: ControlPlane, tmp_path: Path) -> None:
    """The node's own agent says that all is clear, and it happens all the same; no step is lost."""
    async with world(plane, tmp_path / "world", ServiceSettings()) as one:
        await one.nodes("n0", "n1", gpus=1)
        await one.connected()
        job = await one.job("j", LineJobPlan(workers=2, min_workers=2, steps=400, step_seconds=0.1))
        await one.training(job, workers=2)
        await one.decided(job, "Running")
        drill = asyncio.create_task(_drill(one, f"node/{await one.node_of('j-worker-1')}", "25s"))
        try:
            suspended = await one.decided(job, "Suspended")
            assert suspended["status"]["decision"]["reason"].startswith("Drill: j-worker-1 will be reclaimed")
            told = await run_process("explain", "j", "--kubeconfig", one.here.kubeconfig)
            assert f"{one.namespace.name}/trainingjob.j is Suspended for " in told.out
            said = await drill
        finally:
            drill.cancel()
        assert "saves a checkpoint, is suspended, and resumes as a new run" in said.out
        assert "The drill is over." in said.out
        await _finished(one, job)
        assert one.verdict(job).figures.suspensions == 1


async def test_a_drill_of_a_pod_leaves_it_out_and_deletes_it_at_the_end(plane: ControlPlane, tmp_path: Path) -> None:
    """As if its machine went, which stays; the others train on, and nobody is stopped."""
    async with world(plane, tmp_path / "world", ServiceSettings()) as one:
        await one.nodes("n0", "n1", "n2", gpus=1)
        await one.connected()
        job = await one.job("j", LineJobPlan(workers=3, min_workers=2, steps=400, step_seconds=0.1))
        await one.training(job, workers=3)
        await one.decided(job, "Running")
        uid = (await one.namespace.get_pod("j-worker-2"))["metadata"]["uid"]
        said = await _drill(one, f"pod/{one.namespace.name}/j-worker-2", "20s")
        assert "continues with 2 of 3 workers until the drill is over" in said.out
        assert "Drill: j-worker-2 will be reclaimed, says simulated" in said.out
        assert uid not in await _uids(one)
        await _finished(one, job)
        assert one.verdict(job).figures.suspensions == 0
