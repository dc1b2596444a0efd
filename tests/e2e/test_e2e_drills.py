"""Fire drills of a whole job with real processes for every part."""

import asyncio

import pytest

from simulator.events import JobEventKind
from simulator.harness import ReplayWorld
from simulator.services import ServedJobPlan
from tests.job_supervisor.cli.cli_running import Said, run_process
from tests.testkit.worlds import OpenWorld, told_to_stop

_LEAD = "7s"
_LONGER = "15s"


async def _drill(world: ReplayWorld, node: str, lead: str = _LEAD, *more: str) -> Said:
    said = await run_process("simulate", node, "--lead", lead, "--yes", "--data-dir", world.paths.supervisor, *more)
    assert said.code == 0, said.err
    return said


@pytest.mark.long
async def test_a_drill_of_one_host_costs_no_step_and_gives_it_back(open_world: OpenWorld) -> None:
    """Left out in one change, the others train on, and it trains again afterwards, in the same run."""
    world = await open_world(4)
    job = world.start_job(ServedJobPlan(min_workers=2, max_workers=4, steps=600, step_seconds=0.05))
    await world.until_training(job, workers=4)
    said = await _drill(world, "node3", _LEAD, "--wait", "-o", "json")
    assert said.json["phases"][job.plan.name][-1] == "Running"
    assert "Drill: node3 will be reclaimed, says simulated" in said.err
    await world.until_training(job, workers=4)
    world.end_scenario()
    assert await job.wait(90) == 0
    rings = [sorted(event.texts("hosts")) for event in job.events() if event.kind is JobEventKind.RING_FORMED]
    whole = ["node1", "node2", "node3", "node4"]
    assert rings == [whole, ["node1", "node2", "node4"], whole]
    assert {event.integer("run") for event in job.events() if event.kind is JobEventKind.STEP_APPLIED} == {1}
    assert not told_to_stop(world.events(job), run=1)
    assert world.verdict(job).figures.steps_lost == 0


@pytest.mark.long
async def test_a_drill_below_the_minimum_suspends_and_resumes(open_world: OpenWorld) -> None:
    """Rank 0 alone stops and saves; the job resumes from there as soon as the drill is over, and loses nothing."""
    world = await open_world(3)
    job = world.start_job(ServedJobPlan(min_workers=3, max_workers=3, steps=200, step_seconds=0.05))
    await world.until_training(job, workers=3)
    drill = asyncio.create_task(_drill(world, "node2", _LONGER, "--wait", "-o", "json"))
    try:
        status = await world.until(lambda status: status.jobs[0].phase == "Suspended", "the suspension")
        assert status.jobs[0].reason.startswith("Drill: node2 will be reclaimed")
        said = await drill
    finally:
        drill.cancel()
    assert said.json["phases"][job.plan.name][-1] in ("Running", "Finished")
    world.end_scenario()
    assert await job.wait(90) == 0
    assert told_to_stop(world.events(job), run=1) == {0}
    figures = world.verdict(job).figures
    assert (figures.suspensions, figures.resumes, figures.steps_lost) == (1, 1, 0)


@pytest.mark.long
async def test_a_drill_survives_its_supervisor(open_world: OpenWorld) -> None:
    """Killed in the middle of it: the host stays left out, and is given back at the end all the same."""
    world = await open_world(3)
    job = world.start_job(ServedJobPlan(min_workers=2, max_workers=3, steps=3000, step_seconds=0.05))
    await world.until_training(job, workers=3)
    await _drill(world, "node3", "15s")
    await world.until(lambda status: status.jobs[0].exclusions == ["node3"], "the exclusion")
    await world.supervisor.kill()
    await world.supervisor.start()
    status = await world.until(lambda status: bool(status.jobs), "the supervisor to answer")
    assert status.jobs[0].exclusions == ["node3"]
    await world.until(lambda status: status.jobs[0].exclusions == [], "the host to be given back")
    await world.until_training(job, workers=3)
    assert not told_to_stop(world.events(job), run=1)
