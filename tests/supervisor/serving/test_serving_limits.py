"""Limits of unauthenticated peers."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from servicekit.address import Address, parse
from supervisor.serving.servers import _grpc_options
from tests.testkit.server_process import ServerProcess, started
from tests.testkit.serving import ServedPeers, hello, serving
from tests.testkit.waiting import PATIENCE, until

LIMIT = 0.5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def port(peers: ServedPeers, wire: str) -> Address:
    return parse(peers.grpc if wire == "grpc" else peers.http.removeprefix("http://"))


async def is_ended(address: Address, said: bytes) -> float:
    """Says something on a new connection; returns the seconds until the server ends it."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    begun = time.monotonic()
    writer.write(said)
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
    writer.transport.abort()
    return time.monotonic() - begun


@contextlib.contextmanager
def few_descriptors(pid: int) -> Iterator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid) + 10, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[13:15]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def test_a_connection_that_is_of_no_use_is_ended(tmp_path: Path) -> None:
    """Silent, half a request, HTTP/2 without a stream: each within the limit that was set."""
    useless = [("http", b""), ("http", b"POST /v1/"), ("grpc", b""), ("grpc", PREFACE)]
    async with serving(tmp_path, connection_seconds=LIMIT) as served:
        lasted = await asyncio.gather(*(is_ended(port(served.peers, wire), said) for wire, said in useless))
        assert min(lasted) > 0.9 * LIMIT


async def test_streams_outlive_the_limit(tmp_path: Path) -> None:
    """That of a launcher, of a process and of an agent, on the connections that they began with."""
    async with serving(tmp_path, connection_seconds=LIMIT) as served:
        agent = await served.peers.agent("n1")
        launcher, order = await served.peers.running("job", ["n1"])
        process = await served.peers.process(order["token"], "n1", None)
        begun = time.monotonic()
        while time.monotonic() - begun < 3 * LIMIT:
            await process.lines.any()  # A heartbeat; `{}` would be the end.
        await agent.notices("n1")
        assert await process.lines.matching(directive="STOP")
        assert await launcher.lines.matching(phase="Stopping")


async def test_a_connection_holds_a_hundred_agents_and_no_more(tmp_path: Path) -> None:
    # Its hundred agents say nothing after their hello, and must not be given up for that meanwhile.
    async with serving(tmp_path, heartbeat_seconds=5.0) as served:
        peers = served.peers
        peers.agents_of_connection = 101
        calls = [peers.stranger(peers.tokens.agent(f"n{number}")) for number in range(100)]
        for number, call in enumerate(calls):
            await call.say(hello=hello(f"n{number}"))
        for call in calls:
            await call.read("welcome")
        late = peers.stranger(peers.tokens.agent("n100"))
        last = asyncio.create_task(late.say(hello=hello("n100")))
        welcome = asyncio.create_task(late.read("welcome"))
        async with ServedPeers.of(peers.tokens, {"grpc": peers.grpc, "http": peers.http}) as others:
            await others.agent("n101")
        assert not welcome.done()
        calls[0].call.cancel()
        await last
        await welcome


@pytest.mark.parametrize("wire", ["http", "grpc"])
async def test_running_out_of_descriptors_neither_spins_nor_ends_it(tmp_path: Path, wire: str) -> None:
    """Agents that are connected go on, and once the strangers are gone new ones are welcome."""
    async with started(tmp_path) as running:
        agent = await running.peers.agent("n1")
        with few_descriptors(running.process.pid), contextlib.ExitStack() as strangers:
            address = port(running.peers, wire)
            for _ in range(50):
                strangers.enter_context(socket.create_connection((address.host, address.port)))
            await _used_up(running)
            before = cpu_seconds(running.process.pid)
            begun = time.monotonic()
            await agent.notices("n1")
            await asyncio.sleep(max(0.0, begun + 1.0 - time.monotonic()))  # A share needs a time that it is of.
            assert cpu_seconds(running.process.pid) - before < 0.5 * (time.monotonic() - begun)
        await running.peers.agent("n2")
        assert len((await running.status())["agents"]) == 2


async def _used_up(running: ServerProcess) -> None:
    pid = running.process.pid
    most, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    await until(lambda: descriptors(pid) >= most - 1)


_FROZEN_PEER = """
import queue, sys, grpc
waits = queue.Queue()
waits.put(b"hello")
for _ in grpc.insecure_channel(sys.argv[1]).stream_stream("/a/b")(iter(waits.get, None)): pass
"""


@pytest.mark.long
async def test_a_frozen_peer_is_lost_soon_after_the_ping_that_it_does_not_answer() -> None:
    """Its kernel acknowledges the ping, so the time-out of keepalive does not count: gRPC waited for 60 s."""
    heard, lost = asyncio.Event(), asyncio.Event()

    async def listen(messages: AsyncIterator[bytes], _context: object) -> None:
        async for _ in messages:
            heard.set()
        lost.set()

    handler = grpc.stream_stream_rpc_method_handler(listen)
    server = grpc.aio.server(options=[*{**dict(_grpc_options(5.0)), "grpc.keepalive_time_ms": 1000}.items()])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("a", {"b": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peer = await asyncio.create_subprocess_exec(sys.executable, "-c", _FROZEN_PEER, f"127.0.0.1:{port}")
    try:
        await until(heard.is_set)
        peer.send_signal(signal.SIGSTOP)
        await until(lost.is_set, seconds=45)
    finally:
        peer.kill()
        await peer.wait()
        await server.stop(None)
