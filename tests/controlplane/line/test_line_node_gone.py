"""A machine that goes long before it said, with its agent, its kubelet and all on it: nobody waits for it for ever."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from simulator.harness import ServiceSettings
from tests.chaos.chaos_world import QUICK
from tests.controlplane.line.line_world import LineJobPlan, LineWorld, world
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_LEAD = 20.0
_NEVER_IN_TIME = 120.0
"""Seconds: the garbage collector looks for pods of nodes that are gone twice a minute, and wants to see them twice."""


@pytest.fixture
async def one(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LineWorld]:
    async with world(plane, tmp_path / "world", ServiceSettings(QUICK.supervisor, QUICK.agents)) as here:
        await here.nodes("n0", "n1", "n2", "n3", gpus=1)
        await here.connected()
        yield here


async def _ended(one: LineWorld, nodes: Sequence[str]) -> None:
    """Return when all that was ever announced about these nodes counts as gone, and nothing else is announced."""

    async def gone() -> bool:
        notices = await one.here.notices()
        states = {each["spec"]["subject"]["name"]: each["status"]["state"] for each in notices}
        return all(states.get(node) == "gone" for node in nodes) and "active" not in states.values()

    await until(gone, f"the notices on {', '.join(nodes)} are over", seconds=_NEVER_IN_TIME)


@pytest.mark.brief
async def test_a_job_goes_on_without_a_node_that_vanishes_after_its_notice(one: LineWorld) -> None:
    """With its agent dead and no pod of it ever reported as ended, the notice ends and the survivors finish."""
    job = await one.job("j", LineJobPlan(workers=4, min_workers=2, steps=200, step_seconds=0.1))
    await one.training(job, workers=4)
    node = await one.node_of("j-worker-1")
    one.notice([node], _LEAD)
    await one.noticed([node])
    await one.vanish([node])
    await one.training(job, workers=3)
    await _ended(one, [node])
    assert not (await one.jobs.phase("j", "Succeeded", seconds=90)).get("restartCount")
    assert one.verdict(job).figures.suspensions == 0
    await one.decided(job, "Finished")


async def test_a_job_whose_rank_0_vanishes_with_its_node_is_suspended_and_resumes(one: LineWorld) -> None:
    """Nobody is left to answer the STOP, and three of its pods only go with the garbage collector."""
    job = await one.job("j", LineJobPlan(workers=4, min_workers=2, steps=150, step_seconds=0.1))
    await one.training(job, workers=4)
    nodes = [await one.node_of(f"j-worker-{number}") for number in range(3)]
    one.notice(nodes, _LEAD)
    await one.noticed(nodes)
    await one.vanish(nodes)
    await one.decided(job, "Suspended", _NEVER_IN_TIME)
    await _ended(one, nodes)
    await one.nodes("m0", "m1", "m2", gpus=1)
    assert not (await one.jobs.phase("j", "Succeeded", seconds=_NEVER_IN_TIME)).get("restartCount")
    assert (await one.decided(job, "Finished"))["status"]["observed"]["run"] == 2
    # The steps since nobody could save any more are made again, and to the same effect.
    assert one.verdict(job).figures.parameters_equal


async def test_a_job_whose_launcher_vanishes_is_suspended_and_resumes(one: LineWorld) -> None:
    """Without a notice: its operator would leave it without one for ever; the steps since the checkpoint are redone."""
    job = await one.job("j", LineJobPlan(workers=4, min_workers=2, steps=100, step_seconds=0.1))
    await one.training(job, workers=4)
    await one.decided(job, "Running")
    await one.jobs.delete_pod("j-launcher")
    assert not (await one.jobs.phase("j", "Succeeded", seconds=_NEVER_IN_TIME)).get("restartCount")
    assert (await one.decided(job, "Finished"))["status"]["observed"]["run"] == 2
    assert one.verdict(job).figures.parameters_equal
