"""Jobs under kubeai-run, Horovod's real elastic driver and its compiled core: real collectives, by gloo over torch.

The tests print how long survivors pause. That includes the start of a new worker, which imports torch, when one joins.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.cloud.schedule import Add
from simulator.cloud.trace import Node
from simulator.harness import World
from simulator.services import JobProcess
from simulator.verdict import Verdict
from tests.horovod.horovod_plan import HorovodPlan
from tests.horovod.horovod_scenes import longest_pause, remove, rings
from tests.testkit.worlds import OpenWorld

Record = Callable[[str, float], None]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_SECONDS = 240.0
"""For a ring: each new worker imports torch, which takes 3 s on an idle machine and a minute on a busy one."""


def plan(home: Path, workers: int, steps: int, minimum: int = 2) -> HorovodPlan:
    """A job that commits in each step."""
    return HorovodPlan(home=home, gloo=True, min_workers=minimum, max_workers=workers, steps=steps, step_seconds=0.1)


async def finished(world: World, job: JobProcess) -> Verdict:
    """Wait for the end of the training and judge it."""
    assert await job.wait(_SECONDS) == 0, job.child.tail()
    return world.verdict(job)


@pytest.mark.brief
async def test_a_host_leaves_and_comes_back(open_world: OpenWorld, gloo: Path, record_property: Record) -> None:
    """Rank 0's host is reclaimed: the others go on in their processes and lose no step, also when it is back."""
    world = await open_world(3)
    job = world.start_job(plan(gloo, workers=3, steps=400))
    await world.until_training(job, 3, _SECONDS)
    doomed, *others = map(Node, rings(job.events())[0])
    removal = await remove(world, job, doomed)
    assert (removal.left_in_time, removal.same_processes, removal.blacklisted) == (True, True, set())
    record_property("pause of the survivors of a leave, seconds", longest_pause(job.events(), others))
    await world.play([Add(0, doomed)])
    await world.until_training(job, 3, _SECONDS)
    record_property("pause of the others at the join, seconds", longest_pause(job.events(), others))
    verdict = await finished(world, job)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.steps_lost, verdict.figures.suspensions, verdict.figures.hosts_blacklisted) == (0, 0, 0)
    assert verdict.figures.changes_per_group == (1,)
