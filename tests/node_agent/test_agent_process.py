"""The agent as a process of its own."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from reclaim.v1 import reclaim_pb2 as pb

from node_agent.app import AgentExitCode
from tests.node_agent.agent_process import MEBIBYTE, agent, probe
from tests.node_agent.fake_metadata import TERMINATION, FakeMetadata, Reply, metadata
from tests.node_agent.fake_supervisor import FakeAgentService, fake_supervisor
from tests.testkit.waiting import until


@pytest_asyncio.fixture
async def supervisor() -> AsyncIterator[FakeAgentService]:
    async with fake_supervisor() as fake:
        yield fake


@pytest_asyncio.fixture
async def cloud() -> AsyncIterator[FakeMetadata]:
    async with metadata() as fake:
        yield fake


@pytest.fixture
def environ(supervisor: FakeAgentService, cloud: FakeMetadata, tmp_path: Path) -> dict[str, str]:
    token_file = tmp_path / "token"
    token_file.write_text("secret")
    return {
        "NODE_AGENT_NODE_NAME": "n1",
        "NODE_AGENT_SUPERVISOR": f"127.0.0.1:{supervisor.port}",
        "NODE_AGENT_TOKEN_FILE": str(token_file),
        "NODE_AGENT_SOURCES": "aliyun",
        "NODE_AGENT_METADATA_URL": cloud.url,
        "NODE_AGENT_PROBE_ADDRESS": "127.0.0.1:0",
        "NODE_AGENT_POLL_SECONDS": "0.1",
    }


async def test_from_the_metadata_to_the_supervisor_and_back(
    supervisor: FakeAgentService, cloud: FakeMetadata, environ: dict[str, str]
) -> None:
    """A notice arrives and is withdrawn, the probes follow, SIGTERM says goodbye fast, memory stays small."""
    async with agent(environ) as running:
        await until(lambda: supervisor.streams and supervisor.streams[0].messages)
        stream = supervisor.streams[0]
        assert stream.hello.node_uid == "i-1"
        # The hello was heard; the welcome may still be on its way.
        await until(lambda: running.event("supervisor.welcomed"))
        status, body = await probe(running, "/readyz")
        assert (status, body["detail"]["supervisor"]) == (200, "acknowledged")
        assert (await probe(running, "/livez"))[0] == 200

        deadline = datetime.now(UTC) + timedelta(minutes=5)
        cloud.replies[TERMINATION] = Reply(200, deadline.strftime("%Y-%m-%dT%H:%M:%SZ").encode())
        await until(lambda: any(notice.announcement == pb.ANNOUNCEMENT_ACTIVE for notice in stream.notices))
        assert stream.notices[-1].seconds_left == pytest.approx(290.0, abs=11.0)
        _, body = await probe(running, "/readyz")
        assert body["detail"]["sources"]["aliyun"]["state"] == "noticed"
        assert body["detail"]["sources"]["aliyun"]["last_good_poll_age"] < 20.0

        cloud.replies[TERMINATION] = Reply(404)
        await until(lambda: stream.notices[-1].announcement == pb.ANNOUNCEMENT_WITHDRAWN)
        assert running.resident <= 96 * MEBIBYTE
        assert await running.stop() < 20.0
        assert running.process.returncode == AgentExitCode.STOPPED
        await until(lambda: stream.over)
        assert stream.kinds[-1] == "goodbye"
        assert len(supervisor.streams) == 1
    assert running.event("agent.stopped")
    assert len(running.raw) == len(running.lines), "something but the log writes to stderr"


async def test_not_ready_without_a_supervisor_and_live_all_the_same(
    supervisor: FakeAgentService, environ: dict[str, str]
) -> None:
    """Nobody at the other end is a reason to be unready, not to be restarted; SIGINT ends it too."""
    await supervisor.stop()
    async with agent(environ) as running:
        status, body = await probe(running, "/readyz")
        assert (status, body["ok"]) == (503, False)
        assert (await probe(running, "/livez"))[0] == 200
        assert await running.stop(signal.SIGINT) < 20.0
        assert running.process.returncode == AgentExitCode.STOPPED
    assert not any("Traceback" in line for line in running.raw)


async def test_not_ready_without_an_identity(
    supervisor: FakeAgentService, cloud: FakeMetadata, environ: dict[str, str]
) -> None:
    """Where no source tells the machine's id, the agent says so, says nothing else, and goes on asking."""
    cloud.replies["/latest/meta-data/instance-id"] = Reply(500)
    async with agent(environ) as running:
        await until(lambda: running.event("dependency.failing"))
        status, body = await probe(running, "/readyz")
        assert (status, body["detail"]["supervisor"]) == (503, "waits for the node's uid")
        assert "instance-id" in body["detail"]["sources"]["aliyun"]["detail"]
        assert not supervisor.streams
        cloud.replies["/latest/meta-data/instance-id"] = Reply(200, b"i-9")
        await until(lambda: supervisor.streams and supervisor.streams[0].messages)
        assert supervisor.streams[0].hello.node_uid == "i-9"


async def test_a_replaced_agent_ends_with_its_own_code(supervisor: FakeAgentService, environ: dict[str, str]) -> None:
    async with agent(environ) as running:
        await until(lambda: supervisor.streams and supervisor.streams[0].messages)
        supervisor.streams[0].say(pb.SupervisorMessage(superseded=pb.Superseded(session=2**60)))
        async with asyncio.timeout(30):
            assert await running.process.wait() == AgentExitCode.REPLACED
    assert running.event("agent.replaced")


async def test_pods_that_must_be_watched_and_cannot_be_end_it_at_once(environ: dict[str, str], tmp_path: Path) -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for where in ({}, pod):
        extra = {**where, "NODE_AGENT_PODS": "on", "NODE_AGENT_ACCOUNT_DIR": str(tmp_path)}
        async with agent(environ | extra) as running:
            async with asyncio.timeout(30):
                assert await running.process.wait() == AgentExitCode.MISCONFIGURED
        (line,) = running.lines
        assert line["event"] == "agent.misconfigured"


async def test_a_pod_without_an_account_polls_all_the_same(
    supervisor: FakeAgentService, environ: dict[str, str], tmp_path: Path
) -> None:
    """Whoever mounted none does not want the pods watched; it is said once."""
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    async with agent(environ | pod | {"NODE_AGENT_ACCOUNT_DIR": str(tmp_path)}) as running:
        await until(lambda: supervisor.streams and supervisor.streams[0].messages)
        assert [each.source for each in supervisor.streams[0].hello.sources] == ["aliyun"]
        assert running.event("pods.not_watched")


@pytest.mark.parametrize("absent", ["kubernetes_asyncio", "uvloop", "supervisor"])
def test_it_does_without_what_its_image_does_not_have(absent: str) -> None:
    code = (
        f"import sys; sys.modules[{absent!r}] = None; import node_agent.__main__, node_agent.app, servicekit.lifecycle"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_bad_settings_end_it_at_once(environ: dict[str, str]) -> None:
    async with agent(environ | {"NODE_AGENT_POLL_SECONDS": "5"}) as running:
        async with asyncio.timeout(30):
            assert await running.process.wait() == AgentExitCode.MISCONFIGURED
    assert len(running.raw) == 1
    assert "NODE_AGENT_POLL_SECONDS" in running.raw[0]
