"""The rest of what the whole line stands on: agents that poll the metadata of the cluster's nodes, and a supervisor."""

from pathlib import Path

import pytest

from simulator.harness import ServiceSettings
from tests.controlplane.line.line_world import world
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


async def test_a_node_that_will_be_reclaimed_is_noticed_in_the_cluster(plane: ControlPlane, tmp_path: Path) -> None:
    """From its metadata over HTTP by its agent to a resource; a supervisor that was killed finds it there."""
    async with world(plane, tmp_path / "world", ServiceSettings()) as one:
        first, second = await one.nodes("n0", "n1")
        await one.connected()
        one.notice([first], lead=60)
        [notice] = await one.noticed([first])
        assert notice["spec"]["subject"]["kind"] == "node"
        assert one.supervisor is not None
        await one.supervisor.kill()
        await one.supervisor.start()
        one.notice([second], lead=60)
        assert len(await one.noticed([first, second])) == 2
