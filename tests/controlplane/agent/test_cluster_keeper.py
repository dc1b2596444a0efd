"""A real state keeper with the rights that the chart gives it, and tokens of real pods."""

from pathlib import Path
from typing import Any

import aiohttp

from tests.controlplane.agent.agent_on_cluster import mounted
from tests.node_agent.keeper.keeper_process import keeper, listening
from tests.node_agent.keeper.keeper_world import AUDIENCE, MIB, memory
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.installed import KEEPER_RULES
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster

_STATE = "5a" * 32


async def test_a_pod_sends_its_state_with_the_token_that_the_supervisor_takes(
    cluster: RunningCluster, api: Api, namespace: Namespace, tmp_path: Path
) -> None:
    """Its namespace is the tenant. A token of another audience, of no pod, or of a pod that is gone is nobody's."""
    await namespace.account("keeper", cluster_rules=KEEPER_RULES)
    environ = await mounted(namespace, cluster, tmp_path / "account", "keeper")
    worker, gone = await namespace.pod("worker"), await namespace.pod("gone")
    good, late = await _token(api, namespace, worker, AUDIENCE), await _token(api, namespace, gone, AUDIENCE)
    await api.delete(f"{namespace.path}/pods/gone?gracePeriodSeconds=0")
    await namespace.gone("gone")
    with memory() as directory:
        settings = {"authentication": "kubernetes", "account_dir": tmp_path / "account", "tenant_bytes": 2 * MIB}
        async with keeper(directory, environ, **settings) as running, aiohttp.ClientSession() as http:
            url = f"http://{await listening(running)}/v1"

            async def room(token: str) -> tuple[int, Any]:
                async with http.get(f"{url}/room", headers={"Authorization": f"Bearer {token}"}) as answer:
                    return answer.status, (await answer.json()).get("bytes")

            headers = {"Authorization": f"Bearer {good}", "Keep-Seconds": "60"}
            async with http.put(f"{url}/states/{_STATE}/0", data=b"state", headers=headers) as answer:
                assert answer.status == 201
            async with http.get(f"{url}/states/{_STATE}/0") as answer:
                assert await answer.read() == b"state"
            assert await room(good) == (200, 2 * MIB - 4096)
            for other in (
                await _token(api, namespace, worker, "somebody"),
                await namespace.token("default", AUDIENCE),
                await namespace.token("keeper"),
                late,
                good[:-8] + "AAAAAAAA",
            ):
                assert await room(other) == (401, None)
            kept = running.event("part.kept")
            assert kept is not None
            assert kept["tenant"] == namespace.name


async def _token(api: Api, namespace: Namespace, pod: Any, audience: str) -> str:
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    asked = {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound}
    answer = await api.create(f"{namespace.path}/serviceaccounts/default/token", {"spec": asked})
    return str(answer["status"]["token"])
