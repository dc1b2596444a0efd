"""Connections while the process has no descriptors left, on the event loop of the supervisor."""

import contextlib
import socket
import subprocess
import sys

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
        assert [connection.recv(5) for connection in connections] == [b"hello"] * STRANGERS
        process.stdin.write("end\n")
        assert process.wait(PATIENCE) == 0
