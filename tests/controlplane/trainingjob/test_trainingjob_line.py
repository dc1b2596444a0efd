"""A TrainingJob with real agents, supervisor and training under the stand-in operator."""

from pathlib import Path

import pytest

from simulator.harness import ServiceSettings
from tests.controlplane.line.line_world import LineJobPlan, world
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


async def test_a_job_shrinks_is_suspended_and_resumes_from_its_checkpoint(plane: ControlPlane, tmp_path: Path) -> None:
    """One host is left out and the others go on; below the minimum rank 0 saves, and no step is lost on the way."""
    async with world(plane, tmp_path / "world", ServiceSettings()) as one:
        nodes = await one.nodes("n0", "n1", "n2", "n3", gpus=1)
        await one.connected()
        job = await one.job("j", LineJobPlan(workers=4, min_workers=2, steps=250, step_seconds=0.2))
        await one.training(job, workers=4)
        await one.decided(job, "Running")
        first = await one.node_of("j-worker-3")
        one.notice([first], lead=600)
        await one.excluded(job, ["j-worker-3"])
        await one.training(job, workers=3)
        doomed = [await one.node_of(f"j-worker-{number}") for number in range(2)]
        one.notice(doomed, lead=60)
        await one.decided(job, "Suspended")
        assert not (await one.jobs.status("j")).get("restartCount")
        one.withdraw(nodes)
        await one.jobs.phase("j", "Succeeded", seconds=90)
        verdict = one.verdict(job)
        assert verdict.ok, verdict.failures
        assert not (await one.jobs.status("j")).get("restartCount")
        await one.decided(job, "Finished")
