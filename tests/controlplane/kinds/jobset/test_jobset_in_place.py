"""JobSets whose pods are restarted in place, under their real controller."""

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.kinds.jobset.jobset_controller import in_place_controller
from tests.controlplane.kinds.jobset.jobset_in_place import InPlaceContract
from tests.controlplane.kinds.jobset.jobset_jobs import JobSets
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.namespace import fresh_namespace
from tests.testkit.controlplane.running import ControlPlane, running

pytestmark = pytest.mark.long
_STAGES = Path(__file__).parents[2] / "pod_stages.yaml"


@pytest.fixture(scope="module")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of its own, as another version of the controller may not see the same JobSets."""
    stages = {BinaryProgram.KWOK: {"config": _STAGES}}
    with running(programs, tmp_path_factory.mktemp("in-place"), stages) as plane, in_place_controller(plane.cluster):
        yield plane


@pytest.fixture
async def jobs(plane: ControlPlane) -> AsyncIterator[JobSets]:
    """The jobs of the test's namespace, which has two nodes."""
    async with client(plane.cluster) as api, fresh_namespace(plane.cluster, api) as namespace:
        found = JobSets(api, namespace)
        await found.nodes(2)
        yield found


class TestJobSetsInPlace(InPlaceContract):
    """Each test is about a JobSet of one Job."""
