"""A real agent on a real control plane: outages, the node's label, what it costs."""

import asyncio
from pathlib import Path
from typing import Any

from reclaim.v1 import reclaim_pb2 as wire

from tests.controlplane.agent.agent_on_cluster import (
    OPTED_IN,
    Watching,
    account,
    active,
    evict,
    mounted,
    watching,
)
from tests.node_agent.agent_process import MEBIBYTE, probe
from tests.node_agent.fake_metadata import metadata
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.namespace import Namespace, fresh_namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster
from tests.testkit.waiting import until

MAX_PODS = 250
MANIFEST_BYTES = 12_000
"""As much as a training pod's easily has: environment, volumes, managed fields."""
# Three times as fast as the default.
POLL = "0.3"


def on_node(node: str, name: str, **annotations: str) -> dict[str, Any]:
    # A grace that no test outlasts: after its end a notice is gone.
    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 600,
        "containers": [{"name": "main", "image": "none"}],
    }
    return {"metadata": {"name": name, "annotations": {**OPTED_IN, **annotations}}, "spec": spec}


async def test_an_api_server_that_comes_back_finds_nothing_lost(own_controlplane: ControlPlane, tmp_path: Path) -> None:
    """While it is away the pods are unknown and what was known stays; afterwards the watch goes on."""
    cluster = own_controlplane.cluster
    async with client(cluster) as api, fresh_namespace(cluster, api) as namespace:
        node = await namespace.node(labels={"type": "without-kubelet"})
        for name in ("before", "after"):
            await api.create(f"{namespace.path}/pods", on_node(node, name))
        environ = await account(namespace, cluster, tmp_path / "account")
        async with watching(node, tmp_path, environ) as one:
            await evict(api, namespace, "before")
            await one.reported("before", lambda last: last.HasField("deadline"))
            own_controlplane.kill(BinaryProgram.API_SERVER)
            await one.seeing(pods=False)
            await until(lambda: _cannot_connect(one), "the probe says why")
            assert (await probe(one.process, "/readyz"))[0] == 200
            assert (await probe(one.process, "/livez"))[0] == 200
            own_controlplane.launch(BinaryProgram.API_SERVER)
            own_controlplane.wait_ready(BinaryProgram.API_SERVER)
            await one.seeing()
            await evict(api, namespace, "after")
            await one.reported("after", lambda last: last.HasField("deadline"))
            assert all(active(report) for report in one.reports("before"))


async def _cannot_connect(one: Watching) -> bool:
    _, body = await probe(one.process, "/readyz")
    source = body["detail"]["sources"]["kubernetes"]
    return source["state"] == "unknown" and "cannot connect" in source["detail"]


async def test_a_node_whose_label_says_so_is_not_polled(
    cluster: RunningCluster, api: Api, namespace: Namespace, tmp_path: Path
) -> None:
    """Its pods are watched all the same; when the label goes, polling begins."""
    label = "node.alibabacloud.com/spot-strategy"
    node = await namespace.node(labels={label: "NoSpot"})
    uid = (await api.get(f"/api/v1/nodes/{node}"))["metadata"]["uid"]
    environ = await account(namespace, cluster, tmp_path / "account")
    async with metadata() as cloud:
        polled = {"NODE_AGENT_SOURCES": "aliyun", "NODE_AGENT_NODE_UID": "", "NODE_AGENT_POLL_SECONDS": POLL}
        environ |= polled | {"NODE_AGENT_METADATA_URL": cloud.url}
        async with watching(node, tmp_path, environ) as one:
            assert one.supervisor.streams[0].hello.node_uid == uid
            await namespace.pod("worker", annotations=OPTED_IN)
            await namespace.running("worker")
            await evict(api, namespace, "worker")
            await one.reported("worker", active)
            last = one.states("aliyun")[-1]
            assert (last.state, last.detail) == (
                wire.SOURCE_STATE_NOT_SPOT,
                f"the node is not spot: {label}=NoSpot",
            )
            assert not cloud.requests
            await api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {label: "SpotAsPriceGo"}}})

            async def clear() -> bool:
                return one.states("aliyun")[-1].state == wire.SOURCE_STATE_CLEAR

            await until(clear, "the metadata are asked")


async def test_a_full_node_fits_into_the_agents_memory(
    cluster: RunningCluster, api: Api, namespace: Namespace, tmp_path: Path
) -> None:
    """250 opted-in pods, all seen when it starts and all evicted at once; below the 96 MiB that an agent may have."""
    node = await namespace.node(labels={"type": "without-kubelet"})
    names = [f"worker-{number}" for number in range(MAX_PODS)]
    for some in range(0, MAX_PODS, 25):
        pods = [on_node(node, name, padding="x" * MANIFEST_BYTES) for name in names[some : some + 25]]
        await asyncio.gather(*(api.create(f"{namespace.path}/pods", pod) for pod in pods))
    environ = await account(namespace, cluster, tmp_path / "account")
    async with watching(node, tmp_path, environ) as one:
        listed = one.process.resident
        for some in range(0, MAX_PODS, 25):
            await asyncio.gather(*(evict(api, namespace, name) for name in names[some : some + 25]))

        async def reported() -> bool:
            return all(any(each.HasField("deadline") for each in one.reports(name)) for name in names)

        await until(reported, "all pods are reported")
        noticed = one.process.resident
        print(f"resident: {listed / MEBIBYTE:.1f} MiB with 250 pods, {noticed / MEBIBYTE:.1f} MiB noticed")  # noqa: T201 - a figure for people
        assert max(listed, noticed) <= 96 * MEBIBYTE


async def test_an_account_that_may_nothing_leaves_the_pods_unknown(
    cluster: RunningCluster, namespace: Namespace, tmp_path: Path
) -> None:
    await namespace.account("agent")
    node = await namespace.node()
    environ = await mounted(namespace, cluster, tmp_path / "account")
    async with watching(node, tmp_path, environ, sees=False) as one:

        async def refused() -> bool:
            return "forbidden" in one.states("kubernetes")[-1].detail

        await until(refused, "the reason")
        assert one.states("kubernetes")[-1].state == wire.SOURCE_STATE_UNKNOWN
        assert one.states("file")[-1].state == wire.SOURCE_STATE_CLEAR
        assert (await probe(one.process, "/readyz"))[0] == 200
