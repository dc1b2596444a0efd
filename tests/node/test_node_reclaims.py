"""A reclaim on a real node: the chart's pods, a training pod, each a real container."""

import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.controlplane.controlplane_binaries import build_helm
from tests.controlplane.controlplane_running import Cluster
from tests.node.node_world import World, world

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
_LEAD_SECONDS = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(cluster: Cluster, ground: Path) -> AsyncIterator[World]:
    """The chart, installed with two supervisors, and the node's agent; all are ready."""
    async with world(cluster, build_helm(), ground) as one:
        yield one


async def test_a_training_pod_saves_and_leaves_before_its_node_is_gone(here: World) -> None:
    """Its metadata announce it: the process hears STOP, saves and ends; the job is suspended and its pods are gone."""
    home = await here.train("one")
    announced = time.time()
    here.reclaim(announced + _LEAD_SECONDS)
    told = await here.saved(home)
    await here.decided("one", "Suspended")
    suspended = time.time()
    await here.no_pods("one")
    gone = time.time()
    _show(told=told["at"] - announced, suspended=suspended - announced, gone=gone - announced)
    assert told["kind"] == "STOP"
    assert told["step"] > 0
    assert gone - announced < _LEAD_SECONDS
    await here.delete("one")
    await here.keep()


def _show(**seconds: float) -> None:
    """For people: with `-rP`, which shows what tests wrote."""
    sys.stdout.write("".join(f"{name} after {value:.2f} s\n" for name, value in seconds.items()))
