"""End to end on a real control plane: reclaims of nodes under a TrainingJob, judged by what its processes wrote."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from simulator.events import JobEventKind
from simulator.harness import ServiceSettings
from tests.controlplane.line.line_world import LineJob, LineJobPlan, LineWorld, world
from tests.controlplane.operator.operator_jobs import names
from tests.testkit.controlplane.api import ObjectRefused
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_LEAD = 8.0
_WORKERS = 8


@pytest.fixture
async def supervised(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LineWorld]:
    """Eight nodes of one GPU each, their agents, and a supervisor that they have reached."""
    async with world(plane, tmp_path / "world", ServiceSettings()) as one:
        await one.nodes(*(f"n{number}" for number in range(_WORKERS)), gpus=1)
        await one.connected()
        yield one


async def _nodes_of(one: LineWorld, *workers: int) -> list[str]:
    return [await one.node_of(name) for name in names("j", workers, launcher=False)]


async def _finished(one: LineWorld, job: LineJob) -> None:
    status = await one.jobs.phase(job.name, "Succeeded", seconds=90)
    assert not status.get("restartCount")
    verdict = one.verdict(job)
    assert verdict.ok, verdict.failures


async def test_two_of_eight_leave_in_one_change_of_the_list(supervised: LineWorld) -> None:
    """Min is 2: the six others train on, nothing is lost, nobody is stopped."""
    job = await supervised.job("j", LineJobPlan(workers=_WORKERS, min_workers=2, steps=300, step_seconds=0.1))
    await supervised.training(job, workers=_WORKERS)
    await supervised.reclaim(await _nodes_of(supervised, 2, 5), _LEAD)
    await _finished(supervised, job)
    figures = supervised.verdict(job).figures
    assert (figures.suspensions, figures.changes_per_group) == (0, (1,))


async def test_seven_of_eight_are_a_suspension_and_a_resume(supervised: LineWorld) -> None:
    """Min is 2: rank 0 saves, everything is given back, and when nodes are there again the job goes on from there."""
    job = await supervised.job("j", LineJobPlan(workers=_WORKERS, min_workers=2, steps=200, step_seconds=0.1))
    await supervised.training(job, workers=_WORKERS)
    await supervised.reclaim(await _nodes_of(supervised, *range(1, 8)), _LEAD)
    await supervised.decided(job, "Suspended")
    await supervised.jobs.has_pods("j")
    await supervised.nodes(*(f"m{number}" for number in range(7)), gpus=1)
    await supervised.decided(job, "Running", seconds=90)
    await _finished(supervised, job)
    figures = supervised.verdict(job).figures
    assert (figures.suspensions, figures.resumes, figures.false_stops, figures.steps_lost) == (1, 1, 0, 0)


async def test_a_supervisor_that_is_killed_in_the_middle_goes_on(supervised: LineWorld) -> None:
    """Kill -9 as soon as the notices are in the cluster: one change of the list, nothing is lost."""
    job = await supervised.job("j", LineJobPlan(workers=_WORKERS, min_workers=2, steps=300, step_seconds=0.1))
    await supervised.training(job, workers=_WORKERS)
    nodes = await _nodes_of(supervised, 2, 5)
    supervised.notice(nodes, lead=60)
    await supervised.noticed(nodes)
    assert supervised.supervisor is not None
    await supervised.supervisor.kill()
    await supervised.supervisor.start()
    await supervised.excluded(job, names("j", [2, 5], launcher=False))
    await supervised.training(job, workers=_WORKERS - 2)
    await supervised.take_away(nodes)
    await _finished(supervised, job)
    assert supervised.verdict(job).figures.changes_per_group == (1,)


async def test_a_withdrawn_notice_takes_its_exclusion_back(supervised: LineWorld) -> None:
    """The host is left out, and is back in the ring when the cloud has thought better of it."""
    job = await supervised.job("j", LineJobPlan(workers=3, min_workers=1, steps=400, step_seconds=0.1))
    await supervised.training(job, workers=3)
    nodes = await _nodes_of(supervised, 1)
    supervised.notice(nodes, lead=60)
    await supervised.excluded(job, ["j-worker-1"])
    supervised.withdraw(nodes)
    await supervised.excluded(job, [])
    await _finished(supervised, job)


async def test_a_job_that_is_deleted_in_the_middle_of_a_reclaim_is_forgotten(supervised: LineWorld) -> None:
    job = await supervised.job("gone", LineJobPlan(workers=3, min_workers=1, steps=1000, step_seconds=0.1))
    await supervised.training(job, workers=3)
    node = await supervised.node_of("gone-worker-1")
    supervised.notice([node], lead=60)
    await supervised.excluded(job, ["gone-worker-1"])
    await supervised.jobs.delete("gone")
    await supervised.jobs.has_pods("gone")

    async def forgotten() -> bool:
        with suppress(ObjectRefused):
            await supervised.supervised(job)
            return False
        return True

    await until(forgotten, "its SupervisedJob is gone")
    await supervised.take_away([node])
    other = await supervised.job("j", LineJobPlan(workers=3, min_workers=1, steps=150, step_seconds=0.1))
    await supervised.training(other, workers=3)
    await supervised.reclaim(await _nodes_of(supervised, 0), _LEAD)
    await _finished(supervised, other)


async def test_of_two_jobs_of_one_name_only_that_one_moves_whose_node_goes(supervised: LineWorld) -> None:
    jobs = await supervised.neighbour()
    plan = LineJobPlan(workers=3, min_workers=1, steps=250, step_seconds=0.1)
    job, twin = await supervised.job("j", plan), await supervised.job("j", plan, jobs)
    for each in (job, twin):
        await supervised.training(each, workers=3)
    await supervised.reclaim(await _nodes_of(supervised, 1), _LEAD)
    await _finished(supervised, job)
    await jobs.phase("j", "Succeeded", seconds=90)
    assert supervised.verdict(job).figures.changes_per_group == (1,)
    untouched = [
        event for event in twin.events() if event.kind is JobEventKind.EXCLUSIONS_CHANGED and event.texts("hosts")
    ]
    assert not untouched
    assert supervised.verdict(twin).ok
