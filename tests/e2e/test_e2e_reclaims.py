"""Reclaims from the metadata answer to the resumed job, with real processes for every part."""

import pytest

from simulator.cloud.schedule import AddNode, KillNode, ScheduledNotice, Withdraw
from simulator.cloud.trace import Node
from simulator.events import JobEventKind
from simulator.services import ServedJobPlan
from simulator.status import ReadStatus
from tests.testkit.worlds import LEAD, OpenWorld, group, node, told_to_stop


async def test_a_group_leaves_in_one_change_and_training_goes_on(open_world: OpenWorld) -> None:
    """Two of five hosts go together: one change of the list, nothing lost, nobody told to stop."""
    world = await open_world(5)
    job = world.start_job(ServedJobPlan(min_workers=3, max_workers=5, steps=200, step_seconds=0.05))
    await world.until_training(job, workers=5)
    await world.play([*group("g", 2, 3), KillNode(LEAD, node(2)), KillNode(LEAD, node(3))])
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    assert verdict.figures.changes_per_group == (1,)
    assert verdict.figures.suspensions == 0
    assert verdict.figures.hosts_blacklisted == 0


async def test_hosts_train_until_shortly_before_they_go(open_world: OpenWorld) -> None:
    """The ranks say how long their steps take, so two groups leave together, just before the first of them goes."""
    lead = 14.0
    world = await open_world(5)
    plan = ServedJobPlan(min_workers=2, max_workers=5, steps=250, step_seconds=0.1, job_arguments=("--agree",))
    job = world.start_job(plan)
    await world.until_training(job, workers=5)
    await world.until(lambda status: _step_seconds(status, plan) is not None, "the time of a step")
    notices = [ScheduledNotice(0, node(2), lead, "a"), ScheduledNotice(4, node(3), lead, "b")]
    await world.play([*notices, KillNode(lead, node(2)), KillNode(lead + 4, node(3))])
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    assert verdict.figures.changes_per_group == (1, 1)
    first, second = verdict.figures.groups
    assert 4 < first.excluded_after[0] < lead
    assert second.excluded_after[0] == pytest.approx(first.excluded_after[0] - 4, abs=1)


def _step_seconds(status: ReadStatus, plan: ServedJobPlan) -> float | None:
    job = status.job(plan.name)
    return None if job is None else job.step_seconds


async def test_below_the_minimum_rank_0_alone_stops_and_the_job_resumes_elsewhere(open_world: OpenWorld) -> None:
    """Rank 0 saves, nobody steps past it, the hosts are freed, and a new run goes on from there."""
    world = await open_world(4)
    job = world.start_job(ServedJobPlan(min_workers=3, max_workers=4, steps=120, step_seconds=0.05))
    await world.until_training(job, workers=4)
    await world.play(
        [*group("g", 2, 3), KillNode(LEAD, node(2)), KillNode(LEAD, node(3)), AddNode(LEAD, Node("node5"))]
    )
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.suspensions, verdict.figures.resumes) == (1, 1)
    assert told_to_stop(world.events(job), run=1) == {0}
    assert verdict.figures.changes_per_group == ()


@pytest.mark.long
async def test_a_stop_comes_with_the_first_notice_that_makes_it_certain(open_world: OpenWorld) -> None:
    """The second of two notices makes it certain; a third, later one changes nothing."""
    world = await open_world(4)
    job = world.start_job(ServedJobPlan(min_workers=3, max_workers=4, steps=200, step_seconds=0.05))
    await world.until_training(job, workers=4)
    notices = [
        ScheduledNotice(0, node(2), 9, "a"),
        ScheduledNotice(2.5, node(3), 9, "b"),
        ScheduledNotice(4, node(4), 9, "c"),
    ]
    gone = [KillNode(9, node(2)), KillNode(11.5, node(3)), KillNode(13, node(4))]
    await world.play([*notices, *gone, *(AddNode(13, Node(f"node{number}")) for number in (5, 6))])
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    stops = [event.t for event in world.events(job) if event.kind is JobEventKind.FLAG_SEEN]
    shown = [event.t for event in world.events(job) if event.kind is JobEventKind.NOTICE_SHOWN]
    assert len(stops) == 1
    assert shown[1] < stops[0] < shown[2]
    assert verdict.figures.changes_per_group == (1,)


@pytest.mark.long
async def test_a_withdrawn_notice_brings_the_host_back(open_world: OpenWorld) -> None:
    """An excluded host whose notice is taken back trains again, in the same run."""
    world = await open_world(3)
    job = world.start_job(ServedJobPlan(min_workers=2, max_workers=3, steps=300, step_seconds=0.05))
    await world.until_training(job, workers=3)
    await world.play([ScheduledNotice(0, node(2), 30, "g")])
    await world.until_training(job, workers=2)
    await world.play([Withdraw(0, node(2))])
    await world.until_training(job, workers=3)
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    assert verdict.figures.suspensions == 0
    assert job.exclusions_now() == ()
