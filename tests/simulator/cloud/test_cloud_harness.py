from pathlib import Path

import pytest

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


async def test_a_world_ends_a_job_that_nobody_can_save_any_more(tmp_path: Path) -> None:
    """Without a supervisor there is nothing to wait for; what kubeai-run started ends with it."""
    async with world(tmp_path, ["node1", "node2"]) as one:
        job = one.start_job(ServedJobPlan(min_workers=2, max_workers=2, steps=4000, step_seconds=0.05))
        await one.until_training(job, workers=2)
        await one.supervisor.kill()
    assert job.child.exit_code == 143


async def test_what_outlives_a_world_is_a_failure_and_ended(tmp_path: Path) -> None:
    with pytest.raises(ProcessesLeft, match="sleep 600"):
        async with world(tmp_path, []) as one:
            stray = one.spawn("stray", ["sleep", "600"])
    assert await stray.wait(30) == -9
