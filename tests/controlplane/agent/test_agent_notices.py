"""A real agent and a real supervisor turn the eviction of a pod into a ReclaimNotice."""

from pathlib import Path
from typing import Any

import grpc
from reclaim.v1 import reclaim_pb2 as wire

from simulator.cloud.paths import CloudPaths
from simulator.services import SupervisorProcess
from tests.controlplane.agent.agent_on_cluster import OPTED_IN, account, evict
from tests.node_agent.agent_process import agent, probe
from tests.testkit.controlplane.installed import InstalledPlace, place
from tests.testkit.controlplane.namespace import fresh_namespace
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.serving import AgentPeer, ServedPeers
from tests.testkit.waiting import until

SUPERVISED = {"JOB_SUPERVISOR_STORE": "kubernetes", "JOB_SUPERVISOR_GONE_GRACE_SECONDS": "0.5"}


async def notice_about(here: InstalledPlace, pod: str, state: str) -> Any:
    """The agent's notice on a pod, once its state is that."""

    async def there() -> Any:
        for each in await here.notices():
            subject, status = each["spec"]["subject"], each.get("status", {})
            if each["spec"]["source"] == "kubernetes" and subject["name"] == pod and status.get("state") == state:
                return each
        return None

    return await until(there, f"a notice on {pod} that is {state}")


def about(pod: Any, revision: int = 1) -> wire.NoticeReport:
    metadata = pod["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    return wire.NoticeReport(
        source="kubernetes",
        subject=wire.Subject(kind=wire.SUBJECT_KIND_POD, name=name, uid=metadata["uid"]),
        revision=revision,
        announcement=wire.ANNOUNCEMENT_ACTIVE,
    )


async def says(peers: ServedPeers, node: str, pod: Any) -> AgentPeer:
    """The agent of that node has said so of a pod."""
    # A later life than the real one's.
    peer = await peers.agent(node, session=2**60)
    await peer.say(notice=about(pod))
    return peer


async def test_a_pod_that_is_evicted_is_a_notice_in_the_cluster(plane: ControlPlane, tmp_path: Path) -> None:
    """With its name and uid, gone after its deadline although the agent lives; and nobody speaks of others' pods."""
    cluster = plane.cluster
    places = CloudPaths(tmp_path / "supervisor")
    async with place(plane) as here, fresh_namespace(cluster, here.api) as namespace:
        supervisor = SupervisorProcess(places, None, {**SUPERVISED, "KUBECONFIG": str(here.kubeconfig)})
        await supervisor.start()
        try:
            node = await namespace.node()
            pods = {}
            for name in ("worker-0", "worker-1"):
                await namespace.pod(name, annotations=OPTED_IN)
                pods[name] = await namespace.running(name)
            token = tmp_path / "agent.token"
            token.write_text(supervisor.tokens().agent(node))
            environ = {
                **await account(namespace, cluster, tmp_path / "account"),
                "NODE_AGENT_NODE_NAME": node,
                "NODE_AGENT_NODE_UID": "machine-1",
                "NODE_AGENT_SUPERVISOR": supervisor.endpoints.grpc,
                "NODE_AGENT_TOKEN_FILE": str(token),
                "NODE_AGENT_PROBE_ADDRESS": "127.0.0.1:0",
                "NODE_AGENT_SOURCES": "file",
                "NODE_AGENT_FILE_PATH": str(tmp_path / "nothing"),
            }
            async with agent(environ) as process:

                async def sees() -> bool:
                    status, body = await probe(process, "/readyz")
                    return status == 200 and body["detail"]["sources"]["kubernetes"]["state"] == "clear"

                await until(sees, "the agent sees its pods")
                await evict(here.api, namespace, "worker-0")
                notice = await notice_about(here, f"{namespace.name}/worker-0", "gone")
                assert notice["spec"]["subject"]["kind"] == "pod"
                assert notice["spec"]["subject"]["uid"] == pods["worker-0"]["metadata"]["uid"]
                assert notice["status"]["message"] == "DisruptionTarget: EvictionByEvictionAPI: Eviction API: evicting"
                assert process.process.returncode is None
            served = {"http": supervisor.endpoints.http, "grpc": supervisor.endpoints.grpc}
            async with ServedPeers.of(supervisor.tokens(), served) as peers:
                liar = await says(peers, "another-node", pods["worker-1"])
                assert await liar.ended() is grpc.StatusCode.INVALID_ARGUMENT
                subjects = {each["spec"]["subject"]["name"] for each in await here.notices()}
                assert subjects == {f"{namespace.name}/worker-0"}
                honest = await says(peers, node, pods["worker-1"])
                await honest.acknowledged(1)
        finally:
            await supervisor.stop()
