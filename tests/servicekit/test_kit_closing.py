"""A closed client leaves no connection behind, also to a server that no longer answers."""

import asyncio
import base64
import hashlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from servicekit.kubernetes.access import Access
from servicekit.kubernetes.errors import ApiUnavailableError
from servicekit.kubernetes.execute import execute
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer, Call
from simulator.certificates import SimulatedAuthority
from tests.testkit.connections import TlsConnector
from tests.testkit.loops import AsyncioPolicy, UvloopPolicy

_SECONDS = 10.0
_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""What a server adds to the key of a WebSocket, by RFC 6455."""
_KEY = re.compile(rb"(?i)sec-websocket-key: (\S+)")
_SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: "
_BUSY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 9\r\n\r\n"
_TRUSTED = ssl.create_default_context()


@pytest.fixture(params=[AsyncioPolicy, UvloopPolicy])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


@dataclass(frozen=True, slots=True)
class Silent:
    """A server that takes one request, and then reads what arrives without an answer, also to the end of TLS.

    It only agrees to a WebSocket, and answers the path `/busy` with the head of an error.
    """

    listener: socket.socket
    context: ssl.SSLContext
    asked: threading.Event
    ended: threading.Event

    def serve(self) -> None:
        accepted, _ = self.listener.accept()
        accepted.settimeout(_SECONDS)
        with accepted.dup() as connection, self.context.wrap_socket(accepted, server_side=True) as secured:
            connection.settimeout(_SECONDS)
            request = secured.recv(4096)
            key = _KEY.search(request)
            if b" /busy " in request:
                secured.sendall(_BUSY)
            if key:
                agreed = base64.b64encode(hashlib.sha1(key[1] + _WEBSOCKET, usedforsecurity=False).digest())
                secured.sendall(_SWITCHED + agreed + b"\r\n\r\n")
            self.asked.set()
            with suppress(TimeoutError):
                while connection.recv(4096):
                    pass
                self.ended.set()


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[tuple[Silent, ssl.SSLContext]]:
    authority = SimulatedAuthority(tmp_path / "tls")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.cert_file, authority.key_file)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Silent(listener, context, threading.Event(), threading.Event())
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield server, ssl.create_default_context(cafile=str(authority.ca_file))
        thread.join()


@pytest.mark.parametrize("path", ["/", "/busy"])
async def test_the_connection_of_a_cancelled_request_is_closed(
    silent: tuple[Silent, ssl.SSLContext], path: str
) -> None:
    """At once: TLS alone would wait for half a minute, and nobody would close it where the loop ends before."""
    server, trusted = silent
    url = f"https://127.0.0.1:{server.listener.getsockname()[1]}"
    access = Access(url=url, namespace="", tls=trusted, credentials=_nobody, server_hostname="localhost")
    has_head = asyncio.Event()
    client = ApiServer(access, _SECONDS, on_date=lambda _date, _seconds: has_head.set())
    request = asyncio.create_task(client.request(Call(method="GET", path=path)))
    assert await asyncio.to_thread(server.asked.wait, _SECONDS)
    if path == "/busy":
        await has_head.wait()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await client.close()
    assert await asyncio.to_thread(server.ended.wait, _SECONDS)


async def test_so_is_one_whose_handshake_the_server_never_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_SECONDS)
        access = Access(
            url=f"https://127.0.0.1:{listener.getsockname()[1]}", namespace="", credentials=_nobody, tls=_TRUSTED
        )
        client = ApiServer(access, _SECONDS)
        request = asyncio.create_task(client.request(Call(method="GET", path="/")))
        accepted, _ = await asyncio.to_thread(listener.accept)
        with accepted:
            accepted.settimeout(_SECONDS)
            assert await asyncio.to_thread(accepted.recv, 4096)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            await client.close()
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(accepted.recv, 4096) == b""


async def test_so_is_that_of_a_command_whose_time_is_up(silent: tuple[Silent, ssl.SSLContext]) -> None:
    server, trusted = silent
    url = f"https://localhost:{server.listener.getsockname()[1]}"
    client = ApiServer(Access(url=url, namespace="", tls=trusted, credentials=_nobody), 1.0)
    begun = time.monotonic()
    with pytest.raises(ApiUnavailableError, match="has not run the command within 1 s"):
        await execute(client, ObjectKey("space", "pod"), "et", ["true"])
    await client.close()
    assert time.monotonic() - begun < _SECONDS / 2
    assert await asyncio.to_thread(server.ended.wait, _SECONDS)


async def test_so_is_that_of_a_tests_own_client(silent: tuple[Silent, ssl.SSLContext]) -> None:
    server, trusted = silent
    url = f"https://localhost:{server.listener.getsockname()[1]}"
    async with aiohttp.ClientSession(connector=TlsConnector(trusted)) as session:
        request = asyncio.create_task(_get(session, url))
        assert await asyncio.to_thread(server.asked.wait, _SECONDS)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    assert await asyncio.to_thread(server.ended.wait, _SECONDS)


async def _get(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url):
        raise AssertionError("the server does not answer")


async def _nobody() -> dict[str, str]:
    return {}
