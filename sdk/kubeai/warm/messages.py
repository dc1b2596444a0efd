"""Messages between a command and a template, over a Unix socket: JSON behind its length, and open files."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from typing import Any, Sequence

_LENGTH = struct.Struct("!I")
_LONGEST = 16 << 20
_MOST_FILES = 8


class Closed(Exception):  # noqa: N818 - names what has happened
    """The other side has closed the connection, or does not speak this protocol."""


def send(connection: socket.socket, message: dict[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message with open files. Raises OSError."""
    content = json.dumps(message).encode("ascii")
    head = _LENGTH.pack(len(content))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    connection.sendmsg([head], rights)
    connection.sendall(content)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for a message; returns it with its open files.

    Raises:
        Closed: There is none, or it is malformed. Its files are closed.
        OSError: As of the socket, such as its time-out.
    """
    files = array.array("i")
    head, rights, _, _ = connection.recvmsg(_LENGTH.size, socket.CMSG_SPACE(_MOST_FILES * files.itemsize))
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    try:
        (length,) = _LENGTH.unpack(head + _exactly(connection, _LENGTH.size - len(head)))
        message = dict(json.loads(_exactly(connection, length)))
    except (Closed, ValueError, TypeError, OSError) as error:
        close_all(files)
        if isinstance(error, OSError):
            raise
        raise Closed(str(error)) from error
    return message, list(files)


def close_all(files: Sequence[int]) -> None:
    """Close open files."""
    for file in files:
        os.close(file)


def _exactly(connection: socket.socket, length: int) -> bytes:
    if length > _LONGEST:
        raise Closed(f"a message of {length} bytes")
    content = b""
    while len(content) < length:
        part = connection.recv(min(length - len(content), 1 << 16))
        if not part:
            raise Closed("the connection has ended")
        content += part
    return content
