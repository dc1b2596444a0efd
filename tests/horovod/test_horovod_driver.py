"""kubeai-run and kubeai-discover-hosts under the real elastic driver of Horovod 0.28.1; collectives are ours."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.cloud.process import end
from simulator.cloud.schedule import AddNode, KillNode, ScheduledNotice, Withdraw
from simulator.cloud.trace import Node
from simulator.events import JobEventKind
from simulator.harness import ReplayWorld
from simulator.judge import Failure
from simulator.services import JobProcess
from tests.horovod.horovod_plan import HorovodPlan
from tests.horovod.horovod_scenes import blacklisted, instant, live, remove, rings, until_left
from tests.testkit.worlds import OpenWorld, goes_on_at_the_step_after, group, node, told_to_stop

Record = Callable[[str, float], None]


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 2])
async def test_an_announced_removal_costs_nothing(
    open_world: OpenWorld, horovod: Path, rank: int, record_property: Record
) -> None:
    """The doomed worker leaves in time, the others go on in their processes, the host is welcome when it is back."""
    world = await open_world(3)
    job = world.start_job(HorovodPlan(home=horovod, min_workers=2, max_workers=3, steps=480))
    await world.until_training(job, workers=3)
    doomed = Node(rings(job.events())[0][rank])
    removal = await remove(world, job, doomed)
    assert removal.left_in_time
    assert removal.same_processes
    assert removal.blacklisted == set()
    await world.play([AddNode(0, doomed)])
    await world.until_training(job, workers=3)
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    assert verdict.figures.suspensions == 0
    assert verdict.figures.changes_per_group == (1,)
    assert verdict.figures.hosts_blacklisted == 0
    (listed,) = verdict.figures.groups[0].excluded_after
    record_property("notice to the list without the host, seconds", round(listed, 2))


@pytest.mark.long
async def test_a_discovery_script_that_ignores_exclusions_is_noticed(open_world: OpenWorld, horovod: Path) -> None:
    """The control of the test above: its worker is told to leave at the last moment, but its host is blacklisted."""
    world = await open_world(3)
    broken = f"cat {world.paths.hosts}"
    job = world.start_job(HorovodPlan(home=horovod, min_workers=2, max_workers=3, steps=380, discovery=broken))
    await world.until_training(job, workers=3)
    doomed = Node(rings(job.events())[0][2])
    removal = await remove(world, job, doomed)
    assert removal.blacklisted == {doomed}
    assert await job.wait(90) == 0


async def test_below_the_minimum_the_job_is_suspended_and_resumed(
    open_world: OpenWorld, horovod: Path, record_property: Record
) -> None:
    """Rank 0 saves and is held, the hosts are released, and a new run goes on from there: nothing lost or repeated."""
    world = await open_world(4)
    job = world.start_job(HorovodPlan(home=horovod, min_workers=3, max_workers=4, steps=200))
    await world.until_training(job, workers=4)
    await world.play(group("g", 2, 3))
    suspended = await world.until(lambda status: [one.phase for one in status.jobs] == ["Suspended"], "the suspension")
    await until_left(world, job, *(node(number) for number in (1, 2, 3, 4)))
    record_property(
        "flag to suspended, seconds", round(suspended.now - instant(job.events(), JobEventKind.FLAG_SEEN), 2)
    )
    record_property(
        "flag to all workers gone, seconds", round(time.time() - instant(job.events(), JobEventKind.FLAG_SEEN), 2)
    )
    assert len(rings(job.events(), run=1)) == 1
    await world.play([KillNode(0, node(2)), KillNode(0, node(3)), AddNode(0, Node("node5"))])
    await world.until_training(job, workers=3)
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.suspensions, verdict.figures.resumes) == (1, 1)
    events = world.events(job)
    saved = next(event.t for event in events if event.kind is JobEventKind.CHECKPOINT_SAVED)
    # Whoever is still there once the job is suspended is told, too.
    assert told_to_stop((event for event in events if event.t <= saved), run=1) == {0}
    assert verdict.figures.hosts_blacklisted == 0


async def test_a_job_that_is_ended_saves_first(open_world: OpenWorld, horovod: Path) -> None:
    """Rank 0 saves although the driver passes no signal on; no worker is left, and the same name goes on from there."""
    world = await open_world(3)
    job = world.start_job(HorovodPlan(home=horovod, min_workers=2, max_workers=3, steps=4000))
    await world.until_training(job, workers=3)
    await _end(world, job)
    assert told_to_stop(job.events(), run=1) == {0}
    await _end(world, await goes_on_at_the_step_after(world, job))


async def _end(world: ReplayWorld, job: JobProcess) -> None:
    job.child.send(signal.SIGTERM)
    assert await job.wait(90) == 143, job.child.tail()
    await until_left(world, job, *(node(number) for number in (1, 2, 3)))


@pytest.mark.long
@pytest.mark.parametrize("loss", ["host", "workers"])
async def test_an_unannounced_loss_is_horovods_to_repair(open_world: OpenWorld, horovod: Path, loss: str) -> None:
    """It goes back to the last commit and goes on; nobody is told to stop, nothing is suspended."""
    world = await open_world(3)
    job = world.start_job(HorovodPlan(home=horovod, min_workers=2, max_workers=3, steps=200))
    await world.until_training(job, workers=3)
    lost = Node(rings(job.events())[0][1])
    if loss == "host":
        await world.play([KillNode(0, lost)])
    else:
        for pid in live(world, lost):
            end(pid, world.paths.root)
    await world.until_training(job, workers=2)
    assert blacklisted(job.events()) == {lost}
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    # A step that some rank had applied when another died is done again by all.
    assert {finding.failure for finding in verdict.failures} <= {Failure.STEP_LOST}
    assert verdict.figures.steps_lost <= 1
    assert verdict.figures.suspensions == 0


async def test_a_withdrawn_notice_brings_the_host_back(open_world: OpenWorld, horovod: Path) -> None:
    """The host trains again in the same run of the driver, as nothing has blacklisted it."""
    world = await open_world(3)
    job = world.start_job(HorovodPlan(home=horovod, min_workers=2, max_workers=3, steps=400))
    await world.until_training(job, workers=3)
    await world.play([ScheduledNotice(0, node(2), 30, "g")])
    await world.until_training(job, workers=2)
    await world.play([Withdraw(0, node(2))])
    await world.until_training(job, workers=3)
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.suspensions, verdict.figures.hosts_blacklisted) == (0, 0)


@pytest.mark.long
async def test_a_restarted_supervisor_changes_nothing(open_world: OpenWorld, horovod: Path) -> None:
    """Killed with -9 in mid-run and started again: one ring from the first step to the last."""
    world = await open_world(3)
    job = world.start_job(HorovodPlan(home=horovod, min_workers=3, max_workers=3, steps=200))
    await world.until_training(job, workers=3)
    await world.supervisor.kill()
    await world.supervisor.start()
    await world.until(lambda status: len(status.connected()) == 3, "all agents to be back")
    assert await job.wait(90) == 0
    verdict = world.verdict(job)
    assert verdict.ok, verdict.failures
    assert len(rings(job.events())) == 1
    assert job.exclusions_now() == ()
