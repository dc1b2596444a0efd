"""No process of a whole run writes a secret anywhere."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import grpc
import pytest
from reclaim.v1 import reclaim_pb2 as wire
from reclaim.v1.reclaim_pb2_grpc import ReclaimServiceStub

from servicekit.address import parse
from simulator.cloud.metadata import AnswerMode
from simulator.events import JobEvent, JobEventKind
from simulator.harness import ReplayWorld, ServiceSettings, world
from simulator.services import ServedJobPlan
from supervisor.identity.tokens import SECRET_FILE
from tests.testkit.waiting import until
from tests.testkit.worlds import group

STRANGERS = ["eyJhbGciOiJIUzI1NiJ9.c3RyYW5nZXItdG9rZW4.c2lnbmF0dXJl", "no-token-but-a-password"]
_LATER = ("token of a viewer", "token of the run", "session token 0")
EVENTS = ("notice.received", "job.decided", "peer.refused", "node.noticed", "dependency.failing")


def secrets(one: ReplayWorld) -> dict[str, str]:
    """All that there are, by what they are; of a key its lines, as any of them tells a part of it."""
    paths = one.paths
    found = {f"stranger {number}": token for number, token in enumerate(STRANGERS)}
    found["the secret that signs"] = (paths.supervisor / SECRET_FILE).read_text(encoding="utf-8")
    found |= {f"token {path.name}": path.read_text(encoding="utf-8") for path in (paths.root / "tokens").iterdir()}
    [run] = (paths.root / "jobs").rglob("token")
    found["token of the run"] = run.read_text(encoding="utf-8")
    assert one.authority is not None
    lines = one.authority.key_file.read_text(encoding="utf-8").splitlines()
    found |= {f"key {number}": line for number, line in enumerate(lines) if "KEY" not in line}
    issued = [token for each in one.metadata._instances.values() for token in each.tokens]
    assert issued, "no session token of the metadata service was in play"
    found["token of a viewer"] = one.supervisor.tokens().viewer()
    return found | {f"session token {number}": token for number, token in enumerate(issued)}


async def strangers(one: ReplayWorld) -> None:
    """Peers whose tokens are no good, on both wires and in every place where one could be quoted."""
    http, trusted = one.supervisor.endpoints.http, one.authority.ca_pem if one.authority else b""
    tokens = [*STRANGERS, one.supervisor.tokens().viewer()]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
        for token in tokens:
            headers = {"Authorization": f"Bearer {token}"}
            for path in ("/v1/processes/stream", "/v1/launchers/report", f"/v1/status?token={token}", f"/{token}"):
                async with session.post(http + path, headers=headers, json={"token": token}) as answer:
                    assert answer.status >= 400
    address = parse(one.supervisor.endpoints.grpc)
    async with grpc.aio.secure_channel(str(address), grpc.ssl_channel_credentials(trusted)) as channel:
        for token in tokens:
            call = ReclaimServiceStub(channel).Connect(None, metadata=(("authorization", f"Bearer {token}"),))
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(wire.AgentMessage(hello=wire.Hello(node=token)))
            assert await call.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


def _excluded(events: Sequence[JobEvent]) -> bool:
    return any(event.kind is JobEventKind.EXCLUSIONS_CHANGED for event in events)


@pytest.mark.parametrize("form", ["json", pytest.param("console", marks=pytest.mark.long)])
async def test_no_secret_is_ever_written(tmp_path: Path, form: str) -> None:
    """Through a reclaim, strangers, a wrong token and a supervisor that goes and comes back, at the lowest level."""
    agents = {"NODE_AGENT_LOG_FORMAT": form, "NODE_AGENT_LOG_LEVEL": "debug", "NODE_AGENT_METADATA_MODE": "hardened"}
    supervisor = {"JOB_SUPERVISOR_LOG_FORMAT": form, "JOB_SUPERVISOR_LOG_LEVEL": "debug"}
    given = ServiceSettings(supervisor=supervisor, agents=agents)
    async with world(tmp_path, ["node1", "node2", "node3"], mode=AnswerMode.HARDENED, tls=True, settings=given) as one:
        job = one.start_job(ServedJobPlan(min_workers=2, max_workers=3, steps=100_000, step_seconds=0.05))
        await one.until_training(job, workers=3)
        await strangers(one)
        wrong = one.paths.token("agent-node2")
        kept = wrong.read_text(encoding="utf-8")
        wrong.write_text(one.supervisor.tokens().viewer(), encoding="utf-8")
        await one.supervisor.kill()
        await one.supervisor.start()
        await one.until(lambda status: status.connected() >= {"node1", "node3"}, "the others to be back")
        refused = one.paths.log("agent-node2")
        await until(lambda: "is not an agent's" in refused.read_text(encoding="utf-8"), "the agent is refused")
        wrong.write_text(kept, encoding="utf-8")
        await one.until(lambda status: status.connected() >= {"node1", "node2", "node3"}, "all agents to be back")
        await one.play(group("g", 3))
        await one.until_event(job, _excluded, "the host to be left out")
        secret = secrets(one)
    written = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "logs").iterdir()}
    for event in EVENTS:
        assert any(event in text for text in written.values()), f"{event} was not logged"
    told = [(what, log) for what, value in secret.items() for log, text in written.items() if value.strip() in text]
    assert not told
    assert {"the secret that signs", "key 1", "token agent-node1", "token launcher-demo", *_LATER} <= secret.keys()
