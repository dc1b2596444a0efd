"""A JobSet in real pods whose containers are restarted in place, which the kubelet does since Kubernetes 1.36.

The supervisor is a process beside the node: what is tested is how it reads pods and JobSets.
"""

import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.controlplane.identity.identity_world import supervising
from tests.controlplane.kinds.jobset.jobset_controller import in_place_controller
from tests.node.node_in_place import ANEW, IN_PLACE, RESTARTS_IN_PLACE, InPlaceJob, prepare, restarts
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.installed import place
from tests.testkit.controlplane.running import ControlPlane

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not RESTARTS_IN_PLACE,
        reason="the kubelet restarts pods in place since Kubernetes 1.36: `make test-node KUBERNETES=1.36`",
    ),
]


@pytest.fixture(scope="module")
def _controller(plane: ControlPlane) -> Iterator[None]:
    with in_place_controller(plane.cluster):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def supervised(plane: ControlPlane, ground: Path, _controller: None) -> AsyncIterator[Api]:
    """A supervisor that stops a job as soon as one of its hosts seems to be lost."""
    async with (
        client(plane.cluster) as api,
        place(plane) as here,
        supervising(here, ground / "in-place-supervisor", lost_grace_seconds=0.0),
    ):
        await prepare(api)
        yield api


async def _job(api: Api, ground: Path, strategy: str) -> AsyncIterator[InPlaceJob]:
    name = strategy.lower()
    one = InPlaceJob(api, name, ground / "in-place" / name)
    await one.submit(strategy)
    await one.begins()
    await one.decided("Running", 1)
    yield one
    await one.delete()


@pytest_asyncio.fixture(loop_scope="session")
async def in_place(supervised: Api, ground: Path) -> AsyncIterator[InPlaceJob]:
    """A job that trains, whose pods are restarted in place."""
    async for one in _job(supervised, ground, IN_PLACE):
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def anew(supervised: Api, ground: Path) -> AsyncIterator[InPlaceJob]:
    """A job that trains, whose pods are made anew."""
    async for one in _job(supervised, ground, ANEW):
        yield one


async def test_all_pods_restart_in_place_after_a_process_has_failed(in_place: InPlaceJob) -> None:
    """That is another run of the same pods, at the same addresses, and no host was lost meanwhile."""
    before = await in_place.pods()
    failed = await in_place.fail(1)
    begun = await in_place.begins(failed)
    await in_place.decided("Running", 2)
    after = await in_place.pods()
    _show(in_place, begun - failed)
    assert _places(after) == _places(before)
    assert {count for pod in after for count in restarts(pod)} == {1}
    status = await in_place.status()
    assert (status.get("restarts", 0), status["currentInPlaceRestartAttempt"]) == (0, 1)


async def test_the_control_run_with_new_pods(anew: InPlaceJob) -> None:
    """The same failure of a job whose controller makes all Jobs anew."""
    before = await anew.pods()
    failed = await anew.fail(1)
    begun = await anew.begins(failed)
    await anew.decided("Running", 2)
    _show(anew, begun - failed)
    assert not _places(await anew.pods()) & _places(before)
    assert (await anew.status())["restarts"] == 1


def _show(job: InPlaceJob, seconds: float) -> None:
    sys.stdout.write(f"{job.name}: {seconds:.2f} s from the last step before the failure to the first of all workers\n")


def _places(pods: Iterable[Any]) -> set[tuple[str, str]]:
    return {(pod["metadata"]["uid"], pod["status"]["podIP"]) for pod in pods}
