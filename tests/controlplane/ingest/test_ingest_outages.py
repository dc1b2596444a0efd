"""The supervisor works on while the API server reports no reclaims."""

from pathlib import Path

import aiohttp
import pytest

from tests.controlplane.ingest.ingest_cluster import IngestScene, condition
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.credentials import write_kubeconfig
from tests.testkit.controlplane.installed import OWN_RULES, RULES
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.waiting import until

pytestmark = pytest.mark.long


@pytest.mark.brief
async def test_an_api_server_that_comes_back_is_heard_again(here: IngestScene, tmp_path: Path) -> None:
    plane = here.place.plane
    async with here.supervisor(tmp_path, GONE_GRACE_SECONDS="0.2"):
        pod, node = await here.pod("p"), await here.node("n")
        await here.event("e1", "BestEffortToBeReleased", pod)
        await here.node_says("n", condition("InstanceExpired"))
        await here.notice("default/p", "event")
        await here.notice("n", "node-condition")
        before = await here.versions()
        plane.kill(BinaryProgram.API_SERVER)
        with pytest.raises(aiohttp.ClientConnectionError):
            await here.notices()
        plane.compact()
        plane.launch(BinaryProgram.API_SERVER)
        plane.wait_ready(BinaryProgram.API_SERVER)
        await here.event("e2", "InstanceToBeTerminated", node)
        marker = await here.notice("n", "event")
        after = await here.versions()
        del after[marker["metadata"]["name"]]
        assert after == before


async def test_without_the_right_to_events_the_rest_goes_on(here: IngestScene, tmp_path: Path) -> None:
    """The log says what is missing, once for each watch; conditions are taken in."""
    cluster = here.place.plane.cluster
    namespace = Namespace(cluster, here.api)
    await here.api.create("/api/v1/namespaces", {"metadata": {"name": namespace.name}})
    rules = [rule for rule in RULES if rule.get("resources") != ["events"] or "list" not in rule["verbs"]]
    assert len(rules) == len(RULES) - 1
    await namespace.account("deaf", cluster_rules=(*rules, *OWN_RULES))
    kubeconfig = tmp_path / "deaf.kubeconfig"
    write_kubeconfig(kubeconfig, cluster.url, cluster.ca, await namespace.token("deaf"), "default")
    await here.node("n")
    async with here.supervisor(tmp_path / "world", kubeconfig=kubeconfig, RECLAIM_EVENTS="Soon:60") as one:
        await here.node_says("n", condition("InstanceExpired"))
        await here.notice("n", "node-condition")
        log = one.paths.log("supervisor")

        def lines() -> list[str]:
            return [line for line in log.read_text().splitlines() if "watch of events" in line]

        # One watch for the reason that is set, and one for drills.
        await until(lambda: len(lines()) >= 2, "the log to name what is missing")
        assert len(lines()) == 2
        assert all("forbidden" in line for line in lines())
