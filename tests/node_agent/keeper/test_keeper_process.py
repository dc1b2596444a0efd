"""A real keeper process: its settings, its log, its metrics, and another one in its place."""

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

from node_agent.keeper.settings import KeeperAuthentication, KeeperSettings, load
from servicekit.settings import SettingsError
from tests.node_agent.agent_process import probe
from tests.node_agent.keeper.keeper_process import keeper, listening
from tests.node_agent.keeper.keeper_world import memory
from tests.testkit.waiting import until

STATE = "5a" * 32
TOKEN = "a-token-that-is-secret"


async def _put(http: aiohttp.ClientSession, url: str, data: bytes) -> int:
    headers = {"Authorization": f"Bearer {TOKEN}", "Keep-Seconds": "60"}
    async with http.put(url, data=data, headers=headers) as answer:
        return answer.status


async def test_a_state_outlives_the_process_and_no_secret_is_logged() -> None:
    """A keeper that is killed is followed by one that has its parts, without the half of one that it was receiving."""
    with memory() as directory:
        async with aiohttp.ClientSession() as http:
            async with keeper(directory) as first:
                address = await listening(first)
                assert (await probe(first, "/readyz"))[0] == 200
                assert await _put(http, f"http://{address}/v1/states/{STATE}/0", b"state") == 201
                assert await _put(http, f"http://{address}/v1/states/{STATE}/x", b"state") == 400
                host, _, port = address.rpartition(":")
                _reader, writer = await asyncio.open_connection(host, int(port))
                head = f"PUT /v1/states/{STATE}/1 HTTP/1.1\r\nHost: k\r\nKeep-Seconds: 9\r\nContent-Length: 9\r\n\r\n1"
                writer.write(head.encode())
                await until(lambda: any(path.name.startswith("draft-") for path in directory.iterdir()))
                metrics = await listening(first, "metrics.listening")
                async with http.get(f"http://{metrics}/metrics") as answer:
                    served = await answer.text()
                assert "state_keeper_bytes 8192.0" in served
                assert 'state_keeper_refused_requests_total{code="malformed"} 1.0' in served
                assert 'state_keeper_expired_parts_total{read="no"} 0.0' in served
                await first.stop(signal.SIGKILL)
                writer.close()
            async with keeper(directory) as second:
                address = await listening(second)
                async with http.get(f"http://{address}/v1/states/{STATE}/0") as answer:
                    assert await answer.read() == b"state"
                async with http.get(f"http://{address}/v1/states/{STATE}/1") as answer:
                    assert answer.status == 404
                async with http.delete(f"http://{address}/v1/states/{STATE}") as answer:
                    assert answer.status == 204
                await until(lambda: [path.name for path in directory.iterdir()] == ["lock"])
                await second.stop()
                assert second.process.returncode == 0
        kept = first.event("part.kept")
        assert kept is not None
        assert (kept["tenant"], kept["bytes"]) == ("host", 5)
        said = "".join([*first.raw, *second.raw])
        assert "keeper.unauthenticated" in said
        assert STATE not in said
        assert TOKEN not in said


async def test_a_directory_has_one_keeper() -> None:
    with memory() as directory:
        async with keeper(directory) as first:
            await listening(first)
            async with keeper(directory) as second:
                await second.process.wait()
            assert second.process.returncode == 78
            assert second.event("keeper.misconfigured") is not None


async def test_without_a_cluster_it_says_what_is_missing() -> None:
    with memory() as directory:
        async with keeper(directory, authentication="kubernetes") as running:
            await running.process.wait()
            assert running.process.returncode == 78
            assert "KUBERNETES_SERVICE_HOST" in "".join(running.raw)


def test_the_defaults_are_the_promised_ones() -> None:
    settings = load({"STATE_KEEPER_DIRECTORY": "/states", "STATE_KEEPER_BYTES": "1"})
    assert settings == KeeperSettings(
        directory=Path("/states"),
        bytes=1,
        tenant_bytes=0,
        seconds=3600.0,
        address="0.0.0.0:8476",
        authentication=KeeperAuthentication.KUBERNETES,
        audience="job-supervisor.kube-ai.io",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BYTES", "-1"),
        ("TENANT_BYTES", "-1"),
        ("BYTES", "1Gi"),
        ("SECONDS", "0"),
        ("SECONDS", "nan"),
        ("ADDRESS", "8476"),
        ("AUTHENTICATION", "x"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    environ = {"STATE_KEEPER_DIRECTORY": "/states", "STATE_KEEPER_BYTES": "1", f"STATE_KEEPER_{name}": value}
    with pytest.raises(SettingsError, match=f"STATE_KEEPER_{name}"):
        load(environ)
