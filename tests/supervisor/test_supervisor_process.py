"""The supervisor as the process that it is in service."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.settings import PREFIX
from tests.testkit.forbidden_imports import forbidding
from tests.testkit.server_process import spawn, started
from tests.testkit.serving import PeerRefusal, durable, noticed
from tests.testkit.waiting import PATIENCE, until


@contextmanager
def no_more_room(pid: int) -> Iterator[None]:
    """No file that the process writes can grow, as on a full disk."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_time_with_a_goodbye_on_every_stream(tmp_path: Path, number: signal.Signals) -> None:
    """Under two seconds, with agents, a launcher and processes connected, and a peer that does not read."""
    async with started(tmp_path) as running:
        agents = await running.peers.agents(["n1", "n2"])
        launcher, order = await running.peers.running("job", ["n1", "n2"])
        processes = [await running.peers.process(order["token"], node, None) for node in ("n1", "n2")]
        await running.peers.process(order["token"], "does-not-read", None)
        begun = time.monotonic()
        running.process.send_signal(number)
        said = await asyncio.gather(
            launcher.lines.matching(type="goodbye"), *(each.lines.matching(type="goodbye") for each in processes)
        )
        assert {each["reason"] for each in said} == {"the supervisor is stopping"}
        for agent in agents.values():
            assert (await agent.read("goodbye")).reason == "the supervisor is stopping"
        assert await running.ended() == 0
        assert time.monotonic() - begun < 5.0
        assert running.process.stderr is not None
        assert b"Traceback" not in running.process.stderr.read()


async def test_it_does_without_the_client_of_clusters_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubernetes-asyncio takes 37 MiB and a fifth of a second."""
    for name, value in forbidding(tmp_path / "forbidden", "kubernetes_asyncio").items():
        monkeypatch.setenv(name, value)
    async with started(tmp_path) as running:
        await running.peers.agents(["n1"])
        await running.peers.running("job", ["n1"])
        running.process.terminate()
        assert await running.ended() == 0


async def test_a_signal_ends_it_while_it_waits_for_an_api_server(tmp_path: Path) -> None:
    """As the first process of a container it would hear of no signal that it does not ask for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        kubeconfig = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.getsockname()[1]}"}}],
            "users": [{"name": "here", "user": {}}],
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig), encoding="utf-8")
        settings = {PREFIX + "DATA_DIR": str(tmp_path / "data"), PREFIX + "STORE": "kubernetes"}
        with spawn({**os.environ, **settings, "KUBECONFIG": str(tmp_path / "kubeconfig")}) as process:
            try:
                asked, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(server), PATIENCE)
                with asked:
                    process.send_signal(signal.SIGTERM)
                    await until(lambda: process.poll() is not None)
            finally:
                process.kill()
            assert process.stderr is not None
            assert (process.returncode, b"Traceback" in process.stderr.read()) == (0, False)


async def test_what_was_confirmed_survives_kill_9(tmp_path: Path) -> None:
    """Notices, jobs and decisions; everything goes on where it was, once everybody has said hello again."""
    async with started(tmp_path) as running:
        agents = await running.peers.agents(["n1", "n2", "n3"])
        launcher, _ = await running.peers.running("job", ["n1", "n2", "n3"], min_workers=1)
        await agents["n3"].notices("n3")
        changed = await launcher.lines.matching(exclusions=["n3"])
        await launcher.reports(applied=changed["generation"])
        settled = await launcher.lines.matching(phase="Running", exclusions=["n3"])
        before = await running.status()
        running.process.kill()
        await running.ended()
    async with started(tmp_path) as running:
        after = await running.status()
        assert [durable(job) for job in after["jobs"]] == [durable(job) for job in before["jobs"]]
        assert [each["id"] for each in after["notices"]] == ["metadata/n3/uid-n3"]
        assert after["notices"][0]["episode"] == 1
        report = {name: value for name, value in launcher.report.items() if name not in ("job", "instance")}
        again = await running.peers.launcher("job", ["n1", "n2", "n3"], min_workers=1, report=report)
        line = await again.lines.any()
        assert {**line, "token": ""} == {**settled, "token": ""}
        agent = await running.peers.agent("n3", notices=[noticed("n3")])
        await agent.acknowledged(1)
        assert len((await running.status())["notices"]) == 1


async def test_a_second_supervisor_on_the_same_data_is_refused(tmp_path: Path) -> None:
    async with started(tmp_path) as running:
        environment = {**os.environ, PREFIX + "DATA_DIR": str(tmp_path)}
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "supervisor", "serve", env=environment, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await second.communicate()
        assert second.returncode == 1
        assert b"cannot open the store" in errors
        assert b"already served by another supervisor" in errors
        await running.peers.agent("n1")


@pytest.mark.parametrize("service", ["GRPC", "HTTP"])
async def test_a_port_in_use_is_said_in_a_sentence(tmp_path: Path, service: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = {"DATA_DIR": str(tmp_path), "GRPC_ADDRESS": "127.0.0.1:0", "HTTP_ADDRESS": "127.0.0.1:0"}
        environment = {**os.environ, **{PREFIX + name: text for name, text in settings.items()}}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "supervisor",
            "serve",
            env={**environment, f"{PREFIX}{service}_ADDRESS": address},
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert address.rpartition(":")[2] in errors.decode()
    assert b"Traceback" not in errors


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """No file can grow for a while: peers wait or are asked to try again, the process lives, and then all is well."""
    async with started(tmp_path) as running:
        agent = await running.peers.agent("n1")
        launcher = await running.peers.launcher("job", ["n1"])
        with no_more_room(running.process.pid):
            await agent.say(notice=noticed("n1"))
            assert await launcher.says(restarts=1) == PeerRefusal(503, "not_serving")
            assert (await running.status())["notices"] == []
        await launcher.reports(restarts=1)
        await agent.acknowledged(1)
        assert [each["state"] for each in (await running.status())["notices"]] == ["active"]
        assert running.process.poll() is None
