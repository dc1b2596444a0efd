"""Connections while the process has no descriptors left, on the event loop of the supervisor."""

import asyncio
import contextlib
import errno
import socket
import subprocess
import sys

import pytest

from servicekit.address import Address
from servicekit.listener import Listener
from tests.servicekit import kit_scarce
from tests.testkit.waiting import PATIENCE

STRANGERS = 20


def test_connections_wait_without_spinning_until_there_are_descriptors() -> None:
    """Also when a thread takes each descriptor that is free for a moment, such as libuv's reserve."""
    program = [sys.executable, "-m", kit_scarce.__name__]
    with (
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process,
        contextlib.ExitStack() as connected,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        connections = [
            connected.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE)) for _ in range(STRANGERS)
        ]
        process.stdin.write("connected\n")
        assert float(process.stdout.readline()) < 0.5
        connections[-1].settimeout(0.0)
        with pytest.raises(BlockingIOError):  # It waits, and was not closed.
            connections[-1].recv(5)
        connections[-1].settimeout(PATIENCE)
        process.stdin.write("free them\n")
        assert [connection.recv(5) for connection in connections] == [b"hello"] * STRANGERS
        process.stdin.write("end\n")
        assert process.wait(PATIENCE) == 0


async def test_a_kernel_without_ipv6_listens_on_the_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name such as localhost stands for both. With none of its addresses it is an error."""
    made = socket.socket

    def without(family: int, *given: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, *given)

    both = [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where) for family, where in _LOOPBACKS]

    async def found(*_asked: object, **_named: object) -> object:
        return both

    monkeypatch.setattr(socket, "socket", without)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    listener = Listener(asyncio.Protocol, None)
    await listener.listen(Address("localhost", 0), backlog=1)
    assert [each.family for each in listener.sockets] == [socket.AF_INET]
    listener.close()
    both.pop()
    with pytest.raises(OSError, match=r"cannot listen on localhost:0"):
        await Listener(asyncio.Protocol, None).listen(Address("localhost", 0), backlog=1)


_LOOPBACKS = [(socket.AF_INET6, ("::1", 0, 0, 0)), (socket.AF_INET, ("127.0.0.1", 0))]
