"""Jobs under kubeai-run, Horovod's real elastic driver and its compiled core: real collectives, by gloo over torch.

The tests print how long survivors pause. That includes the start of a new worker, which imports torch, when one joins.
"""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.cloud.process import TooLate, script
from simulator.cloud.schedule import AddNode, KillNode, ScheduledNotice, Withdraw
from simulator.cloud.trace import Node
from simulator.harness import ReplayWorld
from simulator.judge import Failure
from simulator.services import JobProcess
from simulator.verdict import ReplayVerdict
from tests.horovod.horovod_plan import HorovodPlan
from tests.horovod.horovod_scenes import blacklisted, longest_pause, remove, rings, until_left
from tests.testkit.waiting import until
from tests.testkit.worlds import OpenWorld, group, node

Record = Callable[[str, float], None]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_SECONDS = 240.0
"""For a ring: each new worker imports torch, which takes 3 s on an idle machine and a minute on a busy one."""


def plan(home: Path, workers: int, steps: int, minimum: int = 2) -> HorovodPlan:
    """A job that commits in each step."""
    return HorovodPlan(home=home, gloo=True, min_workers=minimum, max_workers=workers, steps=steps, step_seconds=0.1)


async def finished(world: ReplayWorld, job: JobProcess) -> ReplayVerdict:
    """Wait for the end of the training and judge it."""
    assert await job.wait(_SECONDS) == 0, job.child.tail()
    return world.verdict(job)


async def test_a_host_leaves_and_comes_back(open_world: OpenWorld, gloo: Path, record_property: Record) -> None:
    """Rank 0's host is reclaimed: the others go on in their processes and lose no step, also when it is back."""
    world = await open_world(3)
    job = world.start_job(plan(gloo, workers=3, steps=400))
    await world.until_training(job, 3, _SECONDS)
    doomed, *others = map(Node, rings(job.events())[0])
    removal = await remove(world, job, doomed)
    assert (removal.left_in_time, removal.same_processes, removal.blacklisted) == (True, True, set())
    record_property("pause of the survivors of a leave, seconds", longest_pause(job.events(), others))
    await world.play([AddNode(0, doomed)])
    await world.until_training(job, 3, _SECONDS)
    record_property("pause of the others at the join, seconds", longest_pause(job.events(), others))
    verdict = await finished(world, job)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.steps_lost, verdict.figures.suspensions, verdict.figures.hosts_blacklisted) == (0, 0, 0)
    assert verdict.figures.changes_per_group == (1,)


async def test_a_group_leaves_in_one_ring(open_world: OpenWorld, gloo: Path, record_property: Record) -> None:
    """Two of four hosts are reclaimed at once, one of them rank 0's: one new ring, no step lost."""
    world = await open_world(4)
    job = world.start_job(plan(gloo, workers=4, steps=200))
    await world.until_training(job, 4, _SECONDS)
    ring = rings(job.events())[0]
    doomed, others = [Node(ring[0]), Node(ring[2])], [Node(ring[1]), Node(ring[3])]
    await world.play([ScheduledNotice(0, host, 30, "g") for host in doomed])
    await world.until_training(job, 2, _SECONDS)
    await until_left(world, job, *doomed)
    record_property("pause of the survivors of a group, seconds", longest_pause(job.events(), others))
    assert len(rings(job.events())) == 2
    await world.play([KillNode(0, host) for host in doomed])
    verdict = await finished(world, job)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.steps_lost, verdict.figures.hosts_blacklisted) == (0, 0)


async def test_below_the_minimum_the_job_is_suspended_and_resumed(open_world: OpenWorld, gloo: Path) -> None:
    """Rank 0 saves and is held; a new run of the driver goes on from there, with no step lost or repeated."""
    world = await open_world(3)
    job = world.start_job(plan(gloo, workers=3, steps=150, minimum=3))
    await world.until_training(job, 3, _SECONDS)
    await world.play(group("g", 2))
    await world.until(lambda status: [one.phase for one in status.jobs] == ["Suspended"], "the suspension", _SECONDS)
    await until_left(world, job, *(node(number) for number in (1, 2, 3)), seconds=60)
    await world.play([KillNode(0, node(2)), AddNode(0, Node("node5"))])
    verdict = await finished(world, job)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.steps_lost, verdict.figures.suspensions, verdict.figures.resumes) == (0, 1, 1)


async def test_a_withdrawn_notice_brings_the_host_back(open_world: OpenWorld, gloo: Path) -> None:
    """It trains again in the same run of the driver, in a new process."""
    world = await open_world(3)
    job = world.start_job(plan(gloo, workers=3, steps=250))
    await world.until_training(job, 3, _SECONDS)
    await world.play([ScheduledNotice(0, node(2), 60, "g")])
    await world.until_training(job, 2, _SECONDS)
    await world.play([Withdraw(0, node(2))])
    await world.until_training(job, 3, _SECONDS)
    verdict = await finished(world, job)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.steps_lost, verdict.figures.hosts_blacklisted) == (0, 0)


async def test_an_unannounced_loss_costs_one_step(open_world: OpenWorld, gloo: Path, record_property: Record) -> None:
    """The others go back to their last commit and go on; the driver blacklists the host."""
    world = await open_world(3)
    job = world.start_job(plan(gloo, workers=3, steps=200))
    await world.until_training(job, 3, _SECONDS)
    ring = [Node(host) for host in rings(job.events())[0]]
    await world.play([KillNode(0, ring[1])])
    await world.until_training(job, 2, _SECONDS)
    record_property("pause of the survivors of an unannounced loss, seconds", longest_pause(job.events(), ring[::2]))
    assert blacklisted(job.events()) == {ring[1]}
    verdict = await finished(world, job)
    record_property("steps of the last commit repeated", verdict.figures.steps_lost)
    assert {finding.failure for finding in verdict.failures} <= {Failure.STEP_LOST}
    assert verdict.figures.steps_lost <= 1
    assert verdict.figures.suspensions == 0


@pytest.mark.parametrize("paced", [True, False])
async def test_a_join_in_the_ring_of_a_leave_hangs_and_is_kept_apart(
    open_world: OpenWorld, gloo: Path, tmp_path: Path, *, paced: bool
) -> None:
    """A host is listed while the others still leave their ring: kubeai-discover-hosts waits, a plain script hangs all.

    Horovod issue 3494. The plain script is the control: what hangs there is Horovod, with nothing of ours in its way.
    """
    world = await open_world(4)
    listed, directory = tmp_path / "listed", tmp_path / "discovery"
    directory.mkdir()
    printed = directory / "hosts.printed"
    ours = f"env KUBEAI_DIR={directory} {script('kubeai-discover-hosts')} --hosts-file {listed} --port 0"
    plain = f"tee {printed} <{listed}"
    lists(listed, 1, 2, 3)
    job = world.start_job(
        HorovodPlan(
            home=gloo,
            gloo=True,
            min_workers=2,
            max_workers=3,
            steps=250,
            step_seconds=0.1,
            # Longer than the second between two calls of the script, shorter than the time that ours waits.
            reset_seconds=2.5,
            discovery=ours if paced else shlex.join(["sh", "-c", plain]),
        )
    )
    await world.until_training(job, 3, _SECONDS)
    lists(listed, 1, 2)
    await until(lambda: "node3" not in printed.read_text(encoding="utf-8"))
    lists(listed, 1, 2, 4)
    if paced:
        await world.until_event(job, lambda events: len(rings(events)) == 3, "the ring of the join", _SECONDS)
        await world.until_training(job, 3, _SECONDS)
        assert [set(ring) for ring in rings(job.events())][1:] == [{"node1", "node2"}, {"node1", "node2", "node4"}]
        assert await job.wait(_SECONDS) == 0, job.child.tail()
        assert world.verdict(job).figures.steps_lost == 0
    else:
        await world.until_event(job, lambda events: len(rings(events)) == 2, "the ring of a leave and a join", _SECONDS)
        assert set(rings(job.events())[1]) == {"node1", "node2", "node4"}
        with pytest.raises(TooLate):
            await world.until_training(job, 3, 20)
        # Nothing else ends them: they would wait for each other for ever.
        await world.play([KillNode(0, node(number)) for number in (1, 2, 4)])


def lists(file: Path, *numbers: int) -> None:
    """Write a host list, as an operator does."""
    file.with_suffix(".new").write_text("".join(f"{node(number)}:1\n" for number in numbers), encoding="utf-8")
    file.with_suffix(".new").rename(file)
