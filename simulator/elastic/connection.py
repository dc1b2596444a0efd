"""A worker's connection to the launcher."""

import select
import socket
from collections import deque

from simulator.elastic.control import Message, decode, encode

_CONNECT_SECONDS = 10.0
_READ_BYTES = 65536


class LauncherLostError(Exception):
    """The launcher is gone and nobody will form another ring: exit."""


class WorkerConnection:
    """Messages to and from the launcher. Not thread-safe."""

    def __init__(self, address: str) -> None:
        """Connect to ``HOST:PORT``. Raises LauncherLostError."""
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)
        except OSError as error:
            raise LauncherLostError(f"no launcher at {address}") from error
        self._socket.settimeout(None)
        self._messages: deque[Message] = deque()
        self._rest = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message. Raises LauncherLostError."""
        try:
            self._socket.sendall(encode(message))
        except OSError as error:
            raise LauncherLostError("the launcher has gone") from error

    def pending(self) -> list[Message]:
        """Return the messages that have arrived, without waiting. Raises LauncherLostError."""
        while select.select([self._socket], [], [], 0)[0]:
            self._read()
        taken = list(self._messages)
        self._messages.clear()
        return taken

    def next(self) -> Message:
        """Wait for a message. Raises LauncherLostError."""
        while not self._messages:
            self._read()
        return self._messages.popleft()

    def _read(self) -> None:
        try:
            part = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise LauncherLostError("the launcher has gone") from error
        if not part:
            raise LauncherLostError("the launcher has gone")
        *lines, self._rest = (self._rest + part).split(b"\n")
        self._messages.extend(decode(line) for line in lines)
