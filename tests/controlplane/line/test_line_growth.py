"""A TrainingJob that was resumed with fewer workers grows while it trains; every part is real."""

from pathlib import Path

import pytest

from simulator.harness import ServiceSettings
from tests.chaos.chaos_world import QUICK
from tests.controlplane.line.line_world import LineJobPlan, world
from tests.controlplane.operator.operator_jobs import names
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

_GROWS_SOON = {"JOB_SUPERVISOR_GROWTH_DELAY_SECONDS": "2"}


async def test_four_that_resumed_as_two_are_four_again(plane: ControlPlane, tmp_path: Path) -> None:
    """Capacity returns, and they train on in the same run: no step is lost, no restart counted, nobody is stopped."""
    given = ServiceSettings({**QUICK.supervisor, **_GROWS_SOON}, QUICK.agents)
    async with world(plane, tmp_path / "world", given) as one:
        nodes = await one.nodes("n0", "n1", "n2", "n3", gpus=1)
        await one.connected()
        job = await one.job("j", LineJobPlan(workers=4, min_workers=2, steps=300, step_seconds=0.1))
        await one.training(job, workers=4)
        one.notice(nodes[:3], lead=15)
        await one.decided(job, "Suspended")
        await one.jobs.has_pods("j")
        await one.take_away(nodes[:3])
        await one.add_node("n4", 1)
        await one.training(job, workers=2)
        await one.add_node("n5", 2)
        await one.training(job, workers=4)
        status = (await one.supervised(job))["status"]
        assert (status["decision"]["phase"], status["observed"]["run"]) == ("Running", 2)
        await one.jobs.has_pods("j", *names("j", range(4)))

        async def tidied() -> bool:
            return not await one.jobs.scale_outs()

        await until(tidied, "there is no ScaleOut any more")
        assert not (await one.jobs.phase("j", "Succeeded", seconds=90)).get("restartCount")
        verdict = one.verdict(job)
        assert verdict.ok, verdict.failures
        figures = verdict.figures
        assert (figures.steps_lost, figures.false_stops) == (0, 0)
        assert (figures.suspensions, figures.resumes) == (1, 1)
