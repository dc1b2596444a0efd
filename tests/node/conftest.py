import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.controlplane.kinds.jobset.jobset_controller import jobset_controller
from tests.controlplane.kinds.trainingoperator.trainingoperator_process import training_operator
from tests.controlplane.kinds.trainjob.trainer_controller import trainer_controller
from tests.node.node_ground import GROUND, MISSING
from tests.node.node_running import node
from tests.node.node_world import NodeWorld, world
from tests.testkit.controlplane.binaries import build, build_node
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def ground() -> Path:
    directory = os.environ.get(GROUND)
    if not directory:
        pytest.skip(os.environ.get(MISSING) or "`make test-node` runs these on a machine of their own")
    return Path(directory)


@pytest.fixture(scope="session")
def plane(ground: Path) -> Iterator[ControlPlane]:
    with node(build(), build_node(), ground) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    return plane.cluster


@pytest.fixture(scope="session")
def _training_operator(cluster: RunningCluster) -> Iterator[None]:
    with training_operator(cluster, "pytorchjob", "tfjob"):
        yield


@pytest.fixture(scope="session")
def _jobset_controller(cluster: RunningCluster) -> Iterator[None]:
    with jobset_controller(cluster):
        yield


@pytest.fixture(scope="session")
def _trainer(cluster: RunningCluster, _jobset_controller: None) -> Iterator[None]:
    with trainer_controller(cluster):
        yield


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def installed(cluster: RunningCluster, ground: Path) -> AsyncIterator[NodeWorld]:
    """Two supervisors and the node's agent, installed as the install page says, and ready."""
    async with world(cluster, ground) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def here(installed: NodeWorld) -> AsyncIterator[NodeWorld]:
    """The same installation. After the test its jobs are gone, and the node stays."""
    yield installed
    await installed.settle()
