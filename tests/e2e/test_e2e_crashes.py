"""kill -9 of services in the middle of a reclaim: no notice lost or doubled, no step lost, no false stop.

What is killed at which of its steps is the business of tests/chaos; here two services die together.
"""

import pytest

from simulator.cloud.schedule import AddNode, KillNode, ScheduledNotice
from simulator.cloud.trace import Node
from simulator.services import ServedJobPlan
from tests.testkit.worlds import OpenWorld, node, told_to_stop

_LEAD = 15.0
"""Seconds: a killed service is back after some two, and its peers after up to five more."""


@pytest.mark.long
async def test_supervisor_and_agent_are_killed_together(open_world: OpenWorld) -> None:
    world = await open_world(4)
    job = world.start_job(ServedJobPlan(min_workers=3, max_workers=4, steps=240, step_seconds=0.05))
    await world.until_training(job, workers=4)
    await world.play([ScheduledNotice(0, node(number), _LEAD, "g") for number in (2, 3)])
    await world.supervisor.kill()
    await world.nodes.agent(node(2)).kill()
    await world.supervisor.start()
    world.nodes.start_agent(node(2))
    await world.until(lambda status: len(status.notices) == 2, "both notices")
    await world.play([KillNode(_LEAD - 2, node(2)), KillNode(_LEAD - 2, node(3)), AddNode(_LEAD - 2, Node("node5"))])
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.suspensions, verdict.figures.resumes) == (1, 1)
    assert told_to_stop(world.events(job), run=1) == {0}
    ended = await world.until(lambda status: all(notice.state == "gone" for notice in status.notices), "both gone")
    assert sorted(notice.subject for notice in ended.notices) == ["node2", "node3"]


async def test_a_supervisor_without_streams_stops_nobody(open_world: OpenWorld) -> None:
    """All agents are dead when it comes back: unknown is neither reclaimed nor free, so the job just goes on."""
    world = await open_world(3)
    job = world.start_job(ServedJobPlan(min_workers=3, max_workers=3, steps=150, step_seconds=0.05))
    await world.until_training(job, workers=3)
    await world.supervisor.kill()
    for number in (1, 2, 3):
        await world.nodes.agent(node(number)).kill()
    await world.supervisor.start()
    found = await world.until(lambda status: status.job("demo") is not None, "the job to be known")
    assert found.connected() == frozenset()
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    assert verdict.figures.suspensions == 0


@pytest.mark.long
async def test_services_stop_quickly_and_everything_is_back_when_they_are(open_world: OpenWorld) -> None:
    """SIGTERM ends supervisor and agents with open streams, without waiting for anybody; the job never notices."""
    world = await open_world(3)
    job = world.start_job(ServedJobPlan(min_workers=2, max_workers=3, steps=200, step_seconds=0.05))
    await world.until_training(job, workers=3)
    assert await world.nodes.agent(node(1)).stop() < 5
    assert await world.supervisor.stop() < 5
    await world.supervisor.start()
    world.nodes.start_agent(node(1))
    await world.until(lambda status: len(status.connected()) == 3, "all agents to be back")
    back = await world.until(lambda status: status.job("demo") is not None, "the job to be known")
    assert [one.phase for one in back.jobs] == ["Running"]
    assert await job.wait(90) == 0
    assert world.verdict(job).ok
