import aiohttp
import pytest

from tests.testkit.controlplane.api import Api, ObjectRefused, client
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.controlplane.running import RunningCluster

_MAPS = "/api/v1/namespaces/default/configmaps"


async def test_an_api_server_that_was_killed_is_back_with_the_same_data(here: InstalledPlace) -> None:
    """While it is away nothing answers; then the same clients, tokens and objects are good."""
    await here.api.create(_MAPS, {"metadata": {"name": "kept"}})
    here.plane.kill(BinaryProgram.API_SERVER)
    with pytest.raises(aiohttp.ClientConnectionError):
        await here.api.get(f"{_MAPS}/kept")
    here.plane.launch(BinaryProgram.API_SERVER)
    here.plane.wait_ready(BinaryProgram.API_SERVER)
    assert (await here.api.get(f"{_MAPS}/kept"))["metadata"]["name"] == "kept"


async def test_a_compacted_revision_is_gone(here: InstalledPlace) -> None:
    """A list at it gets 410, and a watch from it too once the API server's own cache has not got it either."""
    old = (await here.api.create(_MAPS, {"metadata": {"name": "one"}}))["metadata"]["resourceVersion"]
    await here.api.create(_MAPS, {"metadata": {"name": "two"}})
    at_old = {"resourceVersion": old, "resourceVersionMatch": "Exact"}
    names = [item["metadata"]["name"] for item in (await here.api.get(_MAPS, **at_old))["items"]]
    assert "one" in names
    assert "two" not in names
    here.plane.kill(BinaryProgram.API_SERVER)
    assert here.plane.compact() > int(old)
    here.plane.launch(BinaryProgram.API_SERVER)
    here.plane.wait_ready(BinaryProgram.API_SERVER)
    with pytest.raises(ObjectRefused, match="410"):
        await here.api.get(_MAPS, **at_old)
    events = [event async for event in here.api.watch(_MAPS, old, timeoutSeconds="10")]
    assert [(event["type"], event["object"]["code"]) for event in events] == [("ERROR", 410)]


async def test_two_control_planes_side_by_side_have_nothing_in_common(
    here: InstalledPlace, cluster: RunningCluster, api: Api
) -> None:
    """What is in one is not in the other, and a token of one is unknown to the other."""
    await here.api.create(_MAPS, {"metadata": {"name": "here"}})
    with pytest.raises(ObjectRefused, match="404"):
        await api.get(f"{_MAPS}/here")
    async with client(cluster, here.plane.cluster.token) as stranger:
        with pytest.raises(ObjectRefused, match="401"):
            await stranger.get(_MAPS)
