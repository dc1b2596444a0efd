"""A TrainingJob in real pods under our operator, with the real horovodrun over ssh, loses no step that is announced."""

import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from simulator.events import JobEventKind
from tests.horovod.horovod_installation import HorovodNotInstallable, installed
from tests.node.node_horovod import MOST, WORKERS, HorovodJob, last, operating, show, steps
from tests.node.node_world import NodeWorld

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]
_LEAD_SECONDS = 60


@pytest.fixture(scope="module")
def horovod() -> Path:
    try:
        return installed()
    except HorovodNotInstallable as reason:
        pytest.skip(f"Horovod cannot be installed here: {reason}")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def operated(installed: NodeWorld, horovod: Path) -> AsyncIterator[None]:  # noqa: ARG001  # It is needed.
    async with operating(installed):
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def job(here: NodeWorld, operated: None, request: pytest.FixtureRequest) -> HorovodJob:  # noqa: ARG001  # As above.
    """A job of three workers that can go on with two."""
    name = "longer" if request.node.get_closest_marker("long") else "horovod"
    return HorovodJob(here, name, here.home(name))


async def test_an_announced_loss_costs_no_step_and_a_scale_in_of_nobody_nothing(job: HorovodJob) -> None:
    """The launcher is shown the list without the worker; the survivors go on, and nothing is blacklisted."""
    at = time.time()
    await job.submit()
    begun = await job.trains(0, 1, 2)
    announced = await job.here.drill("horovod-worker-2", _LEAD_SECONDS)
    listed = await job.excluded(2)
    smaller = await job.trains(0, 1, after=announced)
    before = await job.pods()
    await job.scale("ScaleIn", "nobody", toDelete={"podNames": ["horovod-worker-9"]})
    refused = await job.scaled("ScaleIn", "nobody")
    await job.trains(0, 1, after=time.time())
    show(
        submitted_to_first_step=begun.t - at,
        announced_to_host_list=listed - announced,
        announced_to_first_step_of_two=smaller.t - announced,
    )
    assert (refused["phase"], refused["message"]) == ("ScaleFailed", "The job has no worker horovod-worker-9.")
    assert await job.pods() >= before - {"horovod-worker-2"}
    events = await job.events()
    assert steps(events, time.time()) == list(range(1, len(steps(events, time.time())) + 1))
    assert not [event for event in events if event.kind is JobEventKind.HOST_BLACKLISTED]


@pytest.mark.long
async def test_a_job_stops_resumes_grows_and_outlives_its_launcher(job: HorovodJob) -> None:
    """No step is lost or made twice before the launcher is deleted, which nobody announces."""
    await job.submit()
    await job.trains(*range(WORKERS))
    at = time.time()
    await job.here.drill("longer-worker-2", _LEAD_SECONDS)
    await job.here.drill("longer-worker-1", _LEAD_SECONDS)
    suspended = await job.phase("Suspended")
    await job.here.decided("longer", "Suspended")
    events = await job.events()
    flag, saved = last(events, JobEventKind.FLAG_SEEN), last(events, JobEventKind.CHECKPOINT_SAVED)
    assert steps(events, time.time())[-1] == saved.integer("step")

    asked = await job.phase("Created")
    resumed = await job.trains(*range(WORKERS), after=asked)
    assert resumed.integer("step") == saved.integer("step") + 1

    wanted = await job.scale("ScaleOut", "more", toAdd={"count": MOST - WORKERS}, timeout=_LEAD_SECONDS)
    grown = await job.trains(*range(MOST), after=wanted)
    assert (await job.scaled("ScaleOut", "more"))["phase"] == "ScaleSucceeded"
    events = await job.events()
    made = steps(events, time.time())
    assert made == list(range(1, len(made) + 1))

    deleted = await job.delete_pod("launcher")
    again = await job.trains(*range(WORKERS), after=deleted)
    made = steps(await job.events(), again.t - 0.001)
    assert not (await job.status()).get("restartCount")
    show(
        announced_to_flag=flag.t - at,
        announced_to_checkpoint=saved.t - at,
        announced_to_no_pods=suspended - at,
        resumed_to_first_step=resumed.t - asked,
        scale_out_to_first_step=grown.t - wanted,
        launcher_deleted_to_first_step=again.t - deleted,
    )
    sys.stdout.write(f"steps made twice after that: {max(made) - again.integer('step') + 1}\n")
