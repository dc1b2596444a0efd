"""Jobs wait for hosts: two jobs compete for one place, and waiting ends after the maximum time."""

import pytest

from simulator.cloud.schedule import AddNode, KillNode, ScheduledNotice
from simulator.cloud.trace import Node
from simulator.events import JobEventKind
from simulator.services import ServedJobPlan
from tests.testkit.worlds import LEAD, OpenWorld, node

_TIMED_OUT = 75


@pytest.mark.long
async def test_two_suspended_jobs_and_capacity_for_one(open_world: OpenWorld) -> None:
    """Both lose too many hosts; what is left is enough for one, which gets all of it, and the other follows it."""
    world = await open_world(4)
    plans = [
        ServedJobPlan(name=name, min_workers=2, max_workers=2, steps=120, step_seconds=0.05)
        for name in ("first", "second")
    ]
    jobs = [world.start_job(plan) for plan in plans]
    for job in jobs:
        await world.until_training(job, workers=2)
    everybody = [ScheduledNotice(0, node(number), LEAD, "g") for number in (1, 2, 3, 4)]
    await world.play(everybody)
    await world.until(lambda status: {job.phase for job in status.jobs} == {"Suspended"}, "both to be suspended")
    gone = [KillNode(LEAD, node(number)) for number in (1, 2, 3, 4)]
    await world.play([*gone, AddNode(LEAD, Node("node5")), AddNode(LEAD, Node("node6"))])
    await world.until(
        lambda status: sorted(job.phase for job in status.jobs) == ["Running", "Suspended"], "one to resume"
    )
    assert [await job.wait(90) for job in jobs] == [0, 0]
    for job in jobs:
        assert world.verdict(job).ok, world.verdict(job).failures
    rings = [[event for event in job.events() if event.kind is JobEventKind.RING_FORMED][-1] for job in jobs]
    assert [sorted(ring.texts("hosts")) for ring in rings] == [["node5", "node6"]] * 2


async def test_a_job_that_waits_too_long_is_timed_out(open_world: OpenWorld) -> None:
    """No capacity at the start: after max-wait-time the job is over, with its own exit code."""
    world = await open_world(1)
    job = world.start_job(ServedJobPlan(min_workers=2, max_workers=2, run_arguments=("--max-wait-time", "1.5")))
    assert await job.wait(90) == _TIMED_OUT
    status = await world.until(lambda status: [job.phase for job in status.jobs] == ["TimedOut"], "the time-out")
    assert "within the maximum waiting time of 1.5 s" in status.jobs[0].reason


# Short runs have the rule in tests/supervisor/decide, and the exit code above.
@pytest.mark.long
async def test_a_suspended_job_that_waits_too_long_is_timed_out(open_world: OpenWorld) -> None:
    world = await open_world(2)
    plan = ServedJobPlan(min_workers=2, max_workers=2, step_seconds=0.05, run_arguments=("--max-wait-time", "2"))
    job = world.start_job(plan)
    await world.until_training(job, workers=2)
    await world.play([ScheduledNotice(0, node(1), LEAD, "g")])
    assert await job.wait(90) == _TIMED_OUT
