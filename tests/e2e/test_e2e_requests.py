"""A person suspends, resumes and stops a job, with real processes for every part."""

from pathlib import Path

import pytest

from simulator.events import JobEventKind
from simulator.harness import ReplayWorld
from simulator.model import reference
from simulator.services import ServedJobPlan
from tests.job_supervisor.cli.cli_running import Said, run_process
from tests.testkit.worlds import OpenWorld, goes_on_at_the_step_after, told_to_stop

NODES = 3
PLAN = ServedJobPlan(min_workers=NODES, max_workers=NODES, steps=800, step_seconds=0.05)


async def _steer(world: ReplayWorld, *arguments: str | Path) -> Said:
    said = await run_process(*arguments, "--wait", "--data-dir", world.paths.supervisor)
    assert said.code == 0, said.err
    return said


async def test_a_suspended_job_waits_for_a_person_and_goes_on_where_it_was(open_world: OpenWorld) -> None:
    """All its hosts are there all the time; the next run repeats no step, and the model is that of a quiet job."""
    world = await open_world(NODES)
    job = world.start_job(PLAN)
    await world.until_training(job, workers=NODES)
    said = await _steer(world, "suspend", job.plan.name, "--reason", "power cut", "--yes")
    assert "has suspended the job: power cut. Rank 0 has " in said.out
    assert told_to_stop(job.events(), run=1) == {0}
    (saved,) = [event.integer("step") for event in job.events() if event.kind is JobEventKind.CHECKPOINT_SAVED]
    await world.supervisor.kill()
    await world.supervisor.start()
    await world.until(lambda status: len(status.connected()) == NODES, "all agents again")
    (held,) = (await world.status()).jobs
    assert (held.phase, held.running) == ("Suspended", False)
    await _steer(world, "resume", job.plan.name)
    assert await job.wait(180) == 0, job.child.tail()
    applied = [event for event in job.events() if event.kind is JobEventKind.STEP_APPLIED]
    assert min(event.integer("step") for event in applied if event.integer("run") == 2) == saved + 1
    digests = {event.text("digest") for event in job.events() if event.kind is JobEventKind.JOB_FINISHED}
    assert digests == {reference(PLAN.steps, PLAN.seed)}


# Short runs have a person's stop in tests/job_supervisor, and how such a job ends and goes on in test_e2e_ending.
@pytest.mark.long
async def test_a_stopped_job_ends_with_its_checkpoint(open_world: OpenWorld) -> None:
    """Its launcher ends as on SIGTERM, and whoever starts the job again loses no step."""
    world = await open_world(NODES)
    job = world.start_job(PLAN)
    await world.until_training(job, workers=NODES)
    said = await _steer(world, "stop", job.plan.name, "--yes")
    assert "has stopped the job. Rank 0 has " in said.out
    assert await job.wait(90) == 143, job.child.tail()
    await world.until(lambda status: [one.phase for one in status.jobs] == ["Finished"], "the job to be over")
    await goes_on_at_the_step_after(world, job)
