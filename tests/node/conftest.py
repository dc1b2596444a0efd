import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.controlplane_binaries import build, build_node
from tests.controlplane.controlplane_running import Cluster
from tests.node.node_ground import GROUND, MISSING
from tests.node.node_running import node


@pytest.fixture(scope="session")
def ground() -> Path:
    """The directory of a machine of the tests' own."""
    directory = os.environ.get(GROUND)
    if not directory:
        pytest.skip(os.environ.get(MISSING) or "`make test-node` runs these on a machine of their own")
    return Path(directory)


@pytest.fixture(scope="session")
def cluster(ground: Path) -> Iterator[Cluster]:
    """A control plane with one real node."""
    with node(build(), build_node(), ground) as plane:
        yield plane.cluster
