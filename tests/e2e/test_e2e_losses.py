"""What a job wants on a loss, with real processes for every part: a fixed size, or multiples of a number."""

import pytest

from simulator.cloud.schedule import AddNode, KillNode, ScheduledNotice, Withdraw
from simulator.cloud.trace import Node
from simulator.events import JobEventKind
from simulator.model import reference
from simulator.services import JobProcess, ServedJobPlan
from tests.testkit.worlds import LEAD, OpenWorld, group, node, told_to_stop


def _parameters(job: JobProcess) -> set[str]:
    return {event.text("digest") for event in job.events() if event.kind is JobEventKind.JOB_FINISHED}


@pytest.mark.long
async def test_a_job_of_pairs_leaves_a_healthy_host_out_and_takes_it_back(open_world: OpenWorld) -> None:
    """One of four hosts is announced: two train on in the same run, and all four once the notice is withdrawn."""
    world = await open_world(4)
    plan = ServedJobPlan(2, 4, steps=300, step_seconds=0.05, run_arguments=("--worker-multiple", "2"))
    job = world.start_job(plan)
    await world.until_training(job, workers=4)
    await world.play([ScheduledNotice(0, node(4), 30, "g")])
    await world.until_training(job, workers=2)
    assert job.exclusions_now() == ("node3", "node4")
    (shown,) = (await world.status()).jobs
    assert "node3 is left out, as the number of workers must be a multiple of 2." in shown.reason
    await world.play([Withdraw(0, node(4))])
    await world.until_training(job, workers=4)
    assert await job.wait(90) == 0, job.child.tail()
    assert _parameters(job) == {reference(plan.steps, plan.seed)}
    assert told_to_stop(job.events(), run=1) == set()


# Short runs have the rule in tests/supervisor/decide, and a job that saves and resumes in test_e2e_reclaims.
@pytest.mark.long
async def test_a_job_that_holds_saves_and_resumes_at_its_size(open_world: OpenWorld) -> None:
    """Two of three hosts would be enough for a minimum of one, but the job waits for the replacement."""
    world = await open_world(3)
    plan = ServedJobPlan(1, 3, steps=120, step_seconds=0.05, run_arguments=("--on-loss", "hold"))
    job = world.start_job(plan)
    await world.until_training(job, workers=3)
    await world.play([*group("g", 2), KillNode(LEAD, node(2)), AddNode(LEAD, Node("node5"))])
    assert await job.wait(90) == 0, job.child.tail()
    assert told_to_stop(job.events(), run=1) == {0}
    (shown,) = (await world.status()).jobs
    assert (shown.run, job.exclusions_now()) == (2, ())
    assert _parameters(job) == {reference(plan.steps, plan.seed)}
