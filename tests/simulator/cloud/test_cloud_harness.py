from pathlib import Path

import pytest

from simulator.cloud.metadata import AnswerMode
from simulator.cloud.process import CloudChild, leftovers
from simulator.cloud.schedule import KillNode, ScheduledNotice
from simulator.cloud.trace import Node
from simulator.events import JobEvent, JobEventKind
from simulator.harness import ProcessesLeft, training, world
from simulator.services import ServedJobPlan


def ring(epoch: int, *hosts: str) -> JobEvent:
    """A ring of these hosts in run 1."""
    return JobEvent(epoch, JobEventKind.RING_FORMED, {"run": 1, "epoch": epoch, "hosts": list(hosts)})


def step(epoch: int, rank: int) -> JobEvent:
    """A step of one rank of the ring in run 1."""
    return JobEvent(
        epoch, JobEventKind.STEP_APPLIED, {"run": 1, "epoch": epoch, "step": 1, "rank": rank, "host": "x", "digest": ""}
    )


def test_a_ring_trains_once_all_its_members_have_applied_a_step() -> None:
    assert training([]) == 0
    assert training([ring(1, "a", "b"), step(1, 0)]) == 0
    assert training([ring(1, "a", "b"), step(1, 0), step(1, 1)]) == 2
    assert training([ring(1, "a", "b"), step(1, 0), step(1, 1), ring(2, "a")]) == 0
    assert training([ring(1, "a", "b"), step(1, 0), step(1, 1), ring(2, "a"), step(2, 0)]) == 1


# Short runs have the two worlds of the next two tests, and more, in tests/e2e.
@pytest.mark.long
async def test_a_small_world_loses_nothing_when_a_node_is_reclaimed(tmp_path: Path) -> None:
    """Agents, supervisor, kubeai-run, launcher and training, all real: a reclaim shrinks the job, and it ends equal."""
    doomed = Node("node2")
    async with world(tmp_path, ["node1", "node2", "node3"], AnswerMode.HARDENED) as one:
        job = one.start_job(ServedJobPlan(min_workers=2, max_workers=3, steps=80))
        await one.until_training(job, workers=3)
        await one.play([ScheduledNotice(0.0, doomed, 5.0, "group-1"), KillNode(5.0, doomed)])
        one.end_scenario()
        assert await job.wait(90) == 0
        assert (await one.status()).job("demo") is not None
    verdict = one.verdict(job)
    assert verdict.failures == ()
    assert verdict.figures.changes_per_group == (1,)
    assert verdict.figures.suspensions == 0
    assert leftovers(tmp_path) == []


@pytest.mark.long
async def test_a_supervisor_comes_back_where_it_was(tmp_path: Path) -> None:
    """Killed and started again it listens on the same ports, keeps its secret, and the agents return."""
    async with world(tmp_path, ["node1"]) as one:
        endpoints = one.supervisor.endpoints
        await one.supervisor.kill()
        await one.supervisor.start()
        assert one.supervisor.endpoints == endpoints
        await one.until(lambda status: status.connected() == {"node1"}, "the agent to come back")
        assert await one.supervisor.stop() < 5.0


async def test_a_world_ends_a_job_that_nobody_can_save_any_more(tmp_path: Path) -> None:
    """Without a supervisor there is nothing to wait for; what kubeai-run started ends with it."""
    async with world(tmp_path, ["node1", "node2"]) as one:
        job = one.start_job(ServedJobPlan(min_workers=2, max_workers=2, steps=4000, step_seconds=0.05))
        await one.until_training(job, workers=2)
        await one.supervisor.kill()
    assert job.child.exit_code == 143


async def test_what_outlives_a_world_is_a_failure_and_ended(tmp_path: Path) -> None:
    stray: CloudChild | None = None
    failure: ProcessesLeft | None = None
    try:
        async with world(tmp_path, []) as one:
            stray = one.spawn("stray", ["sleep", "600"])
    except ProcessesLeft as error:
        failure = error
    assert failure is not None
    assert "sleep 600" in str(failure)
    assert stray is not None
    assert await stray.wait(30) == -9
