"""A worker's end of its connection to the launcher."""

import select
import socket
from collections import deque

from simulator.elastic.control import Message, decode, encode

_CONNECT_SECONDS = 10.0
_READ_BYTES = 65536


class LauncherLostError(Exception):
    """The launcher has gone: nobody will form another ring, so end."""


class Connection:
    """Messages to and from the launcher. Not safe for several threads."""

    def __init__(self, address: str) -> None:
        """Connect to ``HOST:PORT``; raises LauncherLostError."""
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)
        except OSError as error:
            raise LauncherLostError(f"no launcher at {address}") from error
        self._socket.settimeout(None)
        self._messages: deque[Message] = deque()
        self._rest = b""

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message; raises LauncherLostError."""
        try:
            self._socket.sendall(encode(message))
        except OSError as error:
            raise LauncherLostError("the launcher has gone") from error

    def pending(self) -> list[Message]:
        """What has arrived and was not taken yet, without waiting; raises LauncherLostError."""
        while select.select([self._socket], [], [], 0)[0]:
            self._read()
        taken = list(self._messages)
        self._messages.clear()
        return taken

    def next(self) -> Message:
        """Wait for one message; raises LauncherLostError."""
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
