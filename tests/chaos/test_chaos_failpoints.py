"""Kills processes at every failpoint during a reclaim or a shutdown: nothing is lost, and the job is suspended once."""

import signal

import pytest

from simulator.cloud.schedule import KillNode
from simulator.judge import Failure
from tests.chaos.chaos_points import AGENT, LAUNCHER, SUPERVISOR, Armed, PointsScene
from tests.chaos.chaos_world import (
    NODES,
    PLANS,
    announce,
    arm_supervisor,
    armed_by_signal,
    fired,
    nothing_was_lost,
    plan_of,
    restart_agent_armed,
    start_again,
    take_away,
)
from tests.chaos.conftest import OpenWorld
from tests.testkit.waiting import PATIENCE
from tests.testkit.worlds import goes_on_at_the_step_after

_WHOLE = (PointsScene.STOPPING, PointsScene.SHRINKING, PointsScene.PLAIN)

# With kubeai-run die its command and all training processes that this one has started: steps since the last checkpoint
# are gone with them. The job that is registered next counts its runs from 1 again, so that the judge takes them for the
# earlier ones and sees steps after their checkpoint.
_GONE_WITH_THE_LAUNCHER = (Failure.STEP_LOST, Failure.STEP_AFTER_STOP)


def _params(scenarios: tuple[Armed, ...], *scenes: PointsScene) -> list[object]:
    chosen = [armed for armed in scenarios if armed.scene in scenes]
    return [pytest.param(armed, id=str(armed), marks=[pytest.mark.brief] * armed.brief) for armed in chosen]


@pytest.mark.parametrize("armed", _params(SUPERVISOR, *_WHOLE))
async def test_the_supervisor_dies_and_comes_back(open_world: OpenWorld, armed: Armed) -> None:
    """What it had confirmed is durable, what it had not is said again; nobody is stopped twice."""
    world = await open_world(armed_by_signal(armed))
    job = world.start_job(plan_of(armed))
    await world.until_training(job, workers=4)
    revived = await arm_supervisor(world, armed)
    await world.until(lambda status: len(status.connected()) == len(NODES), "all agents", PATIENCE)
    await announce(world, armed.scene)
    await take_away(world, armed.scene, job)
    await nothing_was_lost(world, armed.scene, job)
    await revived


@pytest.mark.parametrize("armed", _params(SUPERVISOR, PointsScene.ENDING))
async def test_the_supervisor_dies_while_a_job_is_being_ended(open_world: OpenWorld, armed: Armed) -> None:
    """Its launcher says again that it is to end; the job saves once, is over, and goes on where it was ended."""
    world = await open_world(armed_by_signal(armed))
    job = world.start_job(plan_of(armed))
    await world.until_training(job, workers=4)
    revived = await arm_supervisor(world, armed)
    job.child.send(signal.SIGTERM)
    assert await job.wait(90) == 143, job.child.tail()
    await revived
    await world.until(lambda status: [one.phase for one in status.jobs] == ["Finished"], "the job to be over", PATIENCE)
    await goes_on_at_the_step_after(world, job)


@pytest.mark.parametrize("armed", _params(AGENT, *_WHOLE))
async def test_an_agent_dies_and_comes_back(open_world: OpenWorld, armed: Armed) -> None:
    world = await open_world()
    job = world.start_job(PLANS[armed.scene])
    await world.until_training(job, workers=4)
    revived = await restart_agent_armed(world, NODES[1], armed)
    await announce(world, armed.scene)
    await take_away(world, armed.scene, job)
    await nothing_was_lost(world, armed.scene, job)
    await revived


@pytest.mark.parametrize("armed", _params(LAUNCHER, *_WHOLE))
async def test_kubeai_run_dies_and_its_user_starts_it_again(open_world: OpenWorld, armed: Armed) -> None:
    """Its command dies with it; the name is free after a moment, and the job goes on from its checkpoint."""
    world = await open_world()
    plan = PLANS[armed.scene]
    first = world.start_job(plan, {"KUBEAI_RUN_FAILPOINT": armed.setting})
    if armed.scene is not PointsScene.PLAIN:
        await world.until_training(first, workers=4)
        await announce(world, armed.scene)
    if armed.scene is PointsScene.STOPPING:
        await take_away(world, armed.scene, first)
    await first.child.wait(PATIENCE)
    fired(first.child, armed)
    job = await start_again(world, plan)
    if armed.scene is PointsScene.SHRINKING:
        await world.play([KillNode(0, NODES[1])])
    await nothing_was_lost(world, armed.scene, job, excused=_GONE_WITH_THE_LAUNCHER)
