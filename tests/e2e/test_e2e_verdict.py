"""The judge can fail the line: each of these runs is damaged on purpose."""

import time

import pytest

from simulator.cloud.schedule import AddNode, KillNode
from simulator.cloud.trace import Node
from simulator.judge import Failure
from simulator.services import ServedJobPlan
from tests.testkit.worlds import LEAD, OpenWorld, group, node


@pytest.mark.long
async def test_a_kill_before_the_checkpoint_shows_as_lost_steps(open_world: OpenWorld) -> None:
    """Rank 0 dies at its flag, unacknowledged and unsaved: the next run does the same steps again."""
    world = await open_world(3)
    plan = ServedJobPlan(
        min_workers=3, max_workers=3, steps=120, step_seconds=0.05, job_arguments=("--fault", "die-unsaved")
    )
    job = world.start_job(plan)
    await world.until_training(job, workers=3)
    await world.play([*group("g", 2), KillNode(LEAD, node(2)), AddNode(LEAD, Node("node5"))])
    assert await job.wait(90) == 0
    assert Failure.STEP_LOST in {finding.failure for finding in world.verdict(job).failures}


@pytest.mark.long
async def test_a_stop_that_nothing_justifies_shows_as_a_false_stop(open_world: OpenWorld) -> None:
    """The metadata answer says what the truth does not know of: the STOP that follows is called false."""
    world = await open_world(3)
    job = world.start_job(ServedJobPlan(min_workers=3, max_workers=3, steps=120, step_seconds=0.05))
    await world.until_training(job, workers=3)
    world.metadata.notice(node(2), time.time() + LEAD)
    await world.until(lambda status: [job.phase for job in status.jobs] == ["Suspended"], "the job to be suspended")
    world.metadata.withdraw(node(2))
    assert await job.wait(90) == 0
    assert {finding.failure for finding in world.verdict(job).failures} == {Failure.FALSE_STOP}
