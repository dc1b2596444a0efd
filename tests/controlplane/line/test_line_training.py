"""The stand-ins for operator and nodes train real jobs without a supervisor."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from simulator.events import JobEvent, JobEventKind
from tests.controlplane.line.line_world import LineJobPlan, LineWorld, world
from tests.controlplane.operator.operator_jobs import RESUME, names
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture
async def alone(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LineWorld]:
    async with world(plane, tmp_path / "world") as one:
        await one.nodes("n0", "n1", gpus=2)
        yield one


@pytest.mark.brief
async def test_a_job_trains_for_real_and_succeeds(alone: LineWorld) -> None:
    """Each worker pod is a rank; the last step's parameters are those of one process that trained alone."""
    job = await alone.job("j", LineJobPlan(workers=3, steps=40))
    await alone.training(job, workers=3)
    await alone.jobs.phase("j", "Succeeded")
    verdict = alone.verdict(job)
    assert verdict.ok, verdict.failures
    formed = [event.texts("hosts") for event in job.events() if event.kind is JobEventKind.RING_FORMED]
    assert sorted(formed[0]) == names("j", range(3), launcher=False)


@pytest.mark.brief
async def test_a_suspended_job_goes_on_from_its_checkpoint(alone: LineWorld) -> None:
    """The annotation ends all of its processes; after the recipe a new run loads what was saved."""
    job = await alone.job("j", LineJobPlan(workers=2, steps=200, job_arguments="--checkpoint-every 10"))
    await alone.event(
        job, lambda events: any(each.kind is JobEventKind.CHECKPOINT_SAVED for each in events), "a checkpoint"
    )
    await alone.jobs.annotate("j", "true")
    await alone.jobs.phase("j", "Suspended")
    await until(lambda: _no_processes(alone), "its processes have ended")
    await alone.jobs.annotate("j", None)
    await alone.jobs.write_status("j", RESUME)
    await alone.jobs.phase("j", "Succeeded")
    events = job.events()
    assert [each.integer("run") for each in events if each.kind is JobEventKind.CHECKPOINT_LOADED] == [2]
    assert any(each.kind is JobEventKind.JOB_FINISHED and each.integer("step") == 200 for each in events)
    assert not (await alone.jobs.status("j")).get("restartCount")


async def test_a_launcher_that_fails_is_a_restart_that_counts(alone: LineWorld) -> None:
    job = await alone.job("j", LineJobPlan(workers=2, steps=60))
    await alone.training(job, workers=2)
    alone.kill_processes("simulator.job")
    await alone.jobs.phase("j", "Running", restartCount=1)
    await alone.jobs.phase("j", "Succeeded")
    runs = {each.integer("run") for each in job.events() if each.kind is JobEventKind.STEP_APPLIED}
    assert runs == {1, 2}


async def test_the_ring_follows_the_workers(alone: LineWorld) -> None:
    """One is deleted and replaced under a new name: the launcher's list loses the one and gains the other."""
    job = await alone.job("j", LineJobPlan(workers=3, steps=400, worker={"restartPolicy": "Always"}))
    await alone.training(job, workers=3)
    await alone.jobs.delete_pod("j-worker-1")
    await alone.event(job, lambda events: _hosts(events) == set(names("j", [0, 2, 3], launcher=False)), "three again")
    await alone.jobs.delete("j")
    await until(lambda: _no_processes(alone), "its processes have ended")


async def test_a_node_that_is_taken_away_takes_its_processes_with_it(alone: LineWorld) -> None:
    """Those of its pods, at once; the others train on, and the truth tells of it."""
    job = await alone.job("j", LineJobPlan(workers=3, steps=120))
    await alone.training(job, workers=3)
    node = await alone.node_of("j-worker-2")
    lost = {name for name in names("j", range(3), launcher=False) if await alone.node_of(name) == node}
    await alone.take_away([node])
    left = set(names("j", range(3), launcher=False)) - lost
    await alone.event(job, lambda events: _hosts(events) == left, "the others go on")
    await alone.jobs.phase("j", "Succeeded")
    gone = {each.text("node") for each in job.events() if each.kind is JobEventKind.NODE_GONE}
    assert lost <= gone


def _hosts(events: Sequence[JobEvent]) -> set[str]:
    rings = [event.texts("hosts") for event in events if event.kind is JobEventKind.RING_FORMED]
    return set(rings[-1]) if rings else set()


async def _no_processes(one: LineWorld) -> bool:
    return not one.processes("simulator")


async def test_jobs_of_one_name_in_two_namespaces_are_two_jobs(alone: LineWorld) -> None:
    jobs = await alone.neighbour()
    one = await alone.job("twin", LineJobPlan(workers=2, steps=30))
    other = await alone.job("twin", LineJobPlan(workers=2, steps=40), jobs)
    for each, run_by in ((one, alone.jobs), (other, jobs)):
        await run_by.phase("twin", "Succeeded")
        verdict = alone.verdict(each)
        assert verdict.ok, verdict.failures


async def test_an_api_server_that_is_away_for_a_while_costs_nobody_anything(
    own_controlplane: ControlPlane, tmp_path: Path
) -> None:
    """Training goes on without it; when it is back, the end of the job is told as ever."""
    async with world(own_controlplane, tmp_path / "world") as one:
        await one.nodes("n0", "n1", gpus=2)
        job = await one.job("j", LineJobPlan(workers=2, steps=60))
        await one.training(job, workers=2)
        own_controlplane.kill(BinaryProgram.API_SERVER)
        await one.event(
            job, lambda events: any(each.kind is JobEventKind.JOB_FINISHED for each in events), "it has finished"
        )
        own_controlplane.launch(BinaryProgram.API_SERVER)
        own_controlplane.wait_ready(BinaryProgram.API_SERVER)
        await one.jobs.phase("j", "Succeeded")
        assert one.verdict(job).ok
