"""Real agents and a real job survive reclaims while the leading supervisor is killed or stopped."""

import os
import signal
from pathlib import Path

import pytest

from supervisor.failpoints import At
from tests.chaos.chaos_points import SUPERVISOR, Armed, PointsScene
from tests.chaos.chaos_world import (
    NODES,
    PLANS,
    QUICK,
    announce,
    armed_by_signal,
    fired,
    nothing_was_lost,
    plan_of,
    take_away,
)
from tests.controlplane.leader.leader_world import two_supervisors
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.waiting import PATIENCE

pytestmark = pytest.mark.long

_FILES = (At.STORE_BEGINS, At.STORE_WRITTEN, At.STORE_COMMITTED, At.STORE_PUBLISHED)
"""Passed by the store that is a file."""

_ALWAYS = ("stopping-decision.stored:2", "shrinking-decision.stored:1")
"""The STOP is durable and nobody was told; the group is durable and the window has just begun."""

_SCENES = (PointsScene.STOPPING, PointsScene.SHRINKING)


def _points() -> list[Armed]:
    points = [one for one in SUPERVISOR if one.scene in _SCENES and one.at not in _FILES and not one.passed_at_start]
    everything = os.environ.get("LEADER_FAILPOINTS") == "all"
    return [one for one in points if everything or str(one) in _ALWAYS]


@pytest.mark.parametrize("armed", _points(), ids=str)
async def test_the_leader_dies_at_a_point_and_another_one_goes_on(
    here: InstalledPlace, tmp_path: Path, armed: Armed
) -> None:
    """Nothing is lost, nobody is stopped twice or for nothing, and the job finishes with the same parameters."""
    async with two_supervisors(here, tmp_path, armed_by_signal(armed)) as (world, standby):
        job = world.start_job(plan_of(armed))
        await world.until_training(job, workers=4)
        world.supervisor.child.send(signal.SIGUSR1)
        await announce(world, armed.scene)
        await world.supervisor.child.wait(PATIENCE)
        fired(world.supervisor.child, armed)
        await take_away(world, armed.scene, job)
        await nothing_was_lost(world, armed.scene, job)
        assert standby.running


async def test_a_polite_stop_in_the_middle_of_a_reclaim(here: InstalledPlace, tmp_path: Path) -> None:
    """As in a rollout: the streams move, and the reclaim goes on with the next leader."""
    scene = PointsScene.SHRINKING
    async with two_supervisors(here, tmp_path, QUICK) as (world, standby):
        job = world.start_job(PLANS[scene])
        await world.until_training(job, workers=4)
        await announce(world, scene)
        await world.supervisor.stop()
        await world.until(lambda status: len(status.connected()) == len(NODES), "all agents", PATIENCE)
        await take_away(world, scene, job)
        await nothing_was_lost(world, scene, job)
        assert standby.running
