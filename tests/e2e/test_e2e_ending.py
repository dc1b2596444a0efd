"""Terminating kubeai-run loses no training step."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from simulator.events import JobEventKind
from simulator.model import reference
from simulator.services import JobProcess, ServedJobPlan
from tests.testkit.worlds import OpenWorld, goes_on_at_the_step_after, told_to_stop

PLAN = ServedJobPlan(min_workers=2, max_workers=3, steps=160, step_seconds=0.05)
LONG = replace(PLAN, steps=4000)
"""Never done before a test is."""


def _terminate(job: JobProcess) -> None:
    job.child.send(signal.SIGTERM)


def _press_ctrl_c(job: JobProcess) -> None:
    """A terminal sends it to everything in its foreground process group."""
    os.killpg(job.child.pid, signal.SIGINT)


@pytest.mark.parametrize(("end", "code"), [(_terminate, 143), pytest.param(_press_ctrl_c, 130, marks=pytest.mark.long)])
async def test_a_job_that_is_ended_saves_first_and_goes_on_from_there(
    open_world: OpenWorld, end: Callable[[JobProcess], None], code: int
) -> None:
    """Rank 0 alone is told to stop; the job is over for the supervisor, and its name and hosts are free at once."""
    world = await open_world(3)
    job = world.start_job(PLAN)
    await world.until_training(job, workers=3)
    end(job)
    assert await job.wait(90) == code, job.child.tail()
    assert told_to_stop(job.events(), run=1) == {0}
    # The launcher ends once its result is stored, which is a moment before the supervisor has decided.
    ended = [("Finished", "The job has ended: terminated.")]
    await world.until(lambda status: [(one.phase, one.reason) for one in status.jobs] == ended, "the job to be over")
    again = await goes_on_at_the_step_after(world, job)
    assert await again.wait(90) == 0, again.child.tail()
    digests = {event.text("digest") for event in again.events() if event.kind is JobEventKind.JOB_FINISHED}
    assert digests == {reference(PLAN.steps, PLAN.seed)}


# Short runs have the launcher's part of the next two in tests/sdk/commands; `make chaos` kills the supervisor as well.
@pytest.mark.long
async def test_a_supervisor_that_is_killed_meanwhile_has_it_saved_when_it_is_back(open_world: OpenWorld) -> None:
    """The request to end the job is part of what its launcher says again."""
    world = await open_world(3)
    job = world.start_job(LONG)
    await world.until_training(job, workers=3)
    await world.supervisor.kill()
    _terminate(job)
    await world.supervisor.start()
    assert await job.wait(90) == 143, job.child.tail()
    assert told_to_stop(job.events(), run=1) == {0}
    await world.until(lambda status: [one.phase for one in status.jobs] == ["Finished"], "the job to be over")
    await goes_on_at_the_step_after(world, job)


@pytest.mark.long
async def test_without_a_supervisor_a_job_ends_after_its_grace_and_says_why(open_world: OpenWorld) -> None:
    """Nobody else can have rank 0 save; nothing of the job is left running."""
    world = await open_world(3)
    job = world.start_job(replace(LONG, run_arguments=("--save-grace", "1")))
    await world.until_training(job, workers=3)
    await world.supervisor.kill()
    _terminate(job)
    assert await job.wait(60) == 143
    assert "the supervisor is unreachable after 1 s: ending run 1 without a checkpoint" in job.child.tail()
    assert not any(event.kind is JobEventKind.CHECKPOINT_SAVED for event in job.events())
