"""The connection of one process to the relay of its pod or machine."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from . import sockets
from .framing import Malformed
from .requests import LAST_CHUNK, STREAM_HEAD, RequestReader

if TYPE_CHECKING:
    from .requests import Request

_RECEIVE_BYTES = 65536


class Peer:
    """The connection of a process to the relay. `send` and `end` may be called by both threads, under one lock."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.process = ""  # once it has asked for a stream
        self._reader = RequestReader()
        self._is_streaming = False

    def read(self) -> tuple[bool, Request | None]:
        """Read what has come: whether the connection is still open, and the request once it is complete."""
        try:
            data = self.sock.recv(_RECEIVE_BYTES)
            return bool(data), self._reader.feed(data) if data else None
        except BlockingIOError:
            return True, None
        except (OSError, Malformed):
            return False, None

    def send(self, data: bytes) -> None:
        """Send all of it, or end the connection of a process that does not read."""
        try:
            # Not even a process that has asked for SIGPIPE is to die of it.
            is_sent = self.sock.send(data, socket.MSG_NOSIGNAL) == len(data)
        except OSError:
            is_sent = False
        if not is_sent:
            sockets.shut(self.sock)

    def stream(self, data: bytes = b"") -> None:
        """Send a part of its stream, which begins with the first."""
        head = b"" if self._is_streaming else STREAM_HEAD
        self._is_streaming = True
        if head or data:
            self.send(head + data)

    def end(self, data: bytes = b"") -> None:
        """Send the last bytes and end the connection. The relay sees its end as the process does."""
        if data and (self._is_streaming or data != LAST_CHUNK):
            self.send(data)
        sockets.shut(self.sock)
