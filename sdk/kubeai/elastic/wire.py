"""The client side of the HTTP contract with the supervisor: short posts and line streams.

http.client is used directly. Nothing here follows redirects or uses a proxy from the environment, so a token is sent
to the configured address only.

    CallRefused   the supervisor refused the call; `code` says what to do next
    Unreachable   there was no usable answer; try again later
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import socket
import ssl
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

MAX_LINE = 1024 * 1024  # bytes; the contract's bound for the largest message in either direction
LOCAL_SCHEME = "unix:"
_CONNECT_SECONDS = 5.0
_HEARTBEATS = 3  # that are missed before the supervisor counts as silent
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}  # Linux has all of them
_HEAD_SECONDS = 15.0
_RECEIVE_BYTES = 65536
_REPLACED_WITHIN = 1.0  # seconds over which clients spread their attempts while a lost supervisor is replaced
_OF_THE_ABSENCE = 1 / 4
_FAULTS = (OSError, http.client.HTTPException, ValueError)
_MAX_CHUNK_HEAD = 1024  # bytes; a size in hex has at most 16 digits, and nobody sends extensions
_CHUNK_HEAD = re.compile(rb"([0-9a-fA-F]{1,16})\s*(?:;.*)?")
_ABSTRACT_PREFIX = "\0kubeai-"
_BACKLOG = 1024
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid

# All open connections of the library. A module variable, because a forked child must find them without an object of the
# parent's threads, whose locks may have been held during the fork. A closed socket in it is harmless.
_open: set[socket.socket] = set()


class CallRefused(Exception):  # noqa: N818 - the name describes the outcome
    """The supervisor refused the call. `code` is the contract's word, or "" if the answer had none."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"refused with {status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class Unreachable(Exception):  # noqa: N818 - as above
    """There was no usable answer: no listener, a broken connection, or a response that violates the contract."""


class MalformedBytes(ValueError):  # noqa: N818 - the name describes the bytes
    """The bytes violate the wire contract. Nothing after them can be trusted."""


@dataclass(frozen=True)
class CallAddress:
    """Where to call: `http://HOST:PORT` or `https://HOST:PORT`, with a bearer token and an optional CA file (PEM).

    A relay is at `unix:NAME`, see `listen_locally`.
    """

    url: str
    token: str = field(repr=False)
    ca: Path | None = None


class WireBackoff:
    """Computes waits between attempts in seconds: full jitter below a ceiling that doubles up to `maximum`.

    While the supervisor has not been away for long, the ceiling is a second, and later a quarter of its absence. So
    thousands of clients spread their attempts over that time, and its successor has all of them soon.
    """

    def __init__(self, first: float = 0.1, maximum: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._first = first
        self._maximum = maximum
        self._clock = clock
        self._ceiling = first
        self._lost_at: float | None = None
        # Not the shared generator, because drawing from it would change the training's random numbers.
        self._random: random.Random = random.SystemRandom()

    def next(self) -> float:
        """Return the next wait."""
        now = self._clock()
        if self._lost_at is None:
            self._lost_at = now
        spread = max(_REPLACED_WITHIN, (now - self._lost_at) * _OF_THE_ABSENCE)
        wait = self._random.uniform(0, min(self._ceiling, spread))
        self._ceiling = min(self._maximum, self._ceiling * 2)
        return wait

    def reset(self) -> None:
        """Start with short waits again: the supervisor is there."""
        self._ceiling = self._first
        self._lost_at = None


@dataclass(eq=False)
class ChunkDecoder:
    """Decodes the chunked transfer coding. `ended` is True after the last chunk; later bytes are ignored.

    http.client is not used for this because its buffered reader holds a lock while it waits for bytes. A process that
    forks meanwhile gets a reader that can be neither used nor closed. Nothing here takes a lock.
    """

    ended: bool = False
    _raw: bytearray = field(default_factory=bytearray)
    _left: int = 0  # bytes still missing of the open chunk, including its final CRLF

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body that `data` completes. Raises MalformedBytes."""
        self._raw += data
        body = bytearray()
        while self._raw and not self.ended:
            if self._left:
                part = self._raw[: self._left]
                del self._raw[: self._left]
                body += part[: max(0, self._left - 2)]
                self._left -= len(part)
                continue
            end = self._raw.find(b"\r\n")
            if end < 0 and len(self._raw) <= _MAX_CHUNK_HEAD:
                break
            head = _CHUNK_HEAD.fullmatch(self._raw[: max(end, 0)])
            if head is None:
                raise MalformedBytes("chunk has no size")
            del self._raw[: end + 2]
            size = int(head[1], 16)
            self.ended = size == 0
            self._left = size + 2
        return bytes(body)


@dataclass(eq=False)
class LineSplitter:
    """Splits a body into lines."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, body: bytes) -> list[bytes]:
        """Return the lines that `body` completes, without line ends. Raises MalformedBytes if one exceeds MAX_LINE."""
        self._rest += body
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        if any(len(line) > MAX_LINE for line in [*lines, rest]):
            raise MalformedBytes(f"line longer than {MAX_LINE} bytes")
        return [bytes(line) for line in lines]


class WireStream:
    """An open stream. Iterating yields each line as a dict, without heartbeats.

    The iteration ends when the supervisor ends the stream cleanly or after `close`. It raises Unreachable if the
    connection breaks, is silent for too long, or carries anything but one JSON object per line.
    """

    def __init__(self, sock: socket.socket, response: http.client.HTTPResponse, first: bytes, silence: float) -> None:
        self._sock = sock
        self._response = response
        self._first = first
        self._silence = silence
        self._reading = threading.RLock()
        self.is_closed = False
        self.was_silent = False
        self._chunks = ChunkDecoder()
        self._lines = LineSplitter()

    def __enter__(self) -> WireStream:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (message for message in self.messages() if message.get("type") != "heartbeat")

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield each line as iterating does, and heartbeats too."""
        data = self._first
        while True:
            try:
                for line in self._lines.feed(self._chunks.feed(data)):
                    yield _object(line)
            except ValueError as error:
                raise Unreachable(f"malformed stream: {error}") from error
            if self._chunks.ended:
                return
            data = self._receive()
            if not data:
                return

    def close(self) -> None:
        """End the stream, from any thread. A waiting reader wakes up and its iteration ends."""
        self.is_closed = True
        shut(self._sock)
        # The shutdown wakes the reader, which releases the lock. Closing earlier would free the descriptor's number
        # while the reader still uses it.
        with self._reading:
            self._response.close()
            release(self._sock)

    def _receive(self) -> bytes:
        """Return the next bytes, none once the stream is closed."""
        try:
            with self._reading:
                data = self._sock.recv(_RECEIVE_BYTES)
        except socket.timeout as error:
            self.was_silent = True
            raise Unreachable(f"no data for {self._silence:g} s") from error
        except _FAULTS as error:
            if self.is_closed:
                return b""
            raise Unreachable(f"the stream broke: {error}") from error
        if not data and not self.is_closed:
            raise Unreachable("the stream ended unexpectedly")
        return data


def post(address: CallAddress, path: str, body: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """Post a JSON object and return the response. Raises CallRefused or Unreachable. `timeout` is per step."""
    with _translated(address), contextlib.ExitStack() as stack:
        sock = _connect(address, timeout)
        stack.callback(release, sock)
        response = _exchange(sock, address, path, body)
        stack.callback(response.close)
        return _object(_content(response))


def open_stream(address: CallAddress, path: str, hello: Mapping[str, Any], silence: float = 60.0) -> WireStream:
    """Send the hello and return the stream. Raises CallRefused or Unreachable.

    `silence` is the longest time in seconds without a byte from the supervisor, which is asked for three heartbeats in
    it. That finds a supervisor that hangs; the kernel finds one whose machine is gone.
    """
    with _translated(address), contextlib.ExitStack() as stack:
        sock = _connect(address, min(_CONNECT_SECONDS, silence))
        stack.callback(release, sock)
        sock.settimeout(min(_HEAD_SECONDS, silence))
        response = _exchange(sock, address, path, hello, {"Heartbeat-Seconds": f"{silence / _HEARTBEATS:g}"})
        stack.callback(response.close)
        if not response.chunked:
            raise Unreachable(f"{address.url} did not answer with a stream")
        sock.settimeout(0)
        try:
            first = response.fp.peek()  # what http.client has read beyond the response head; it never waits
        except ssl.SSLWantReadError:
            first = b""
        finally:
            sock.settimeout(silence)
        stream = WireStream(sock, response, first, silence)
        stack.pop_all()
        return stream


@dataclass(eq=False)
class PostConnection:
    """A connection for one post after another. It is opened when it is needed, and again after the peer has closed it.

    A post may then be sent twice, so only what may be repeated is posted.
    """

    _sock: socket.socket | None = None
    _address: CallAddress | None = None

    def post(self, address: CallAddress, path: str, body: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
        """Post as the function `post` does."""
        with _translated(address):
            sock = self._sock if address == self._address else None
            if sock is not None:
                try:
                    return self._post(sock, address, path, body)
                except socket.timeout:
                    raise
                except _FAULTS:
                    pass  # the peer has closed a connection that was idle
            self.close()
            sock = _connect(address, timeout)
            self._sock, self._address = sock, address
            return self._post(sock, address, path, body)

    def close(self) -> None:
        """Close the connection, from any thread; the next post opens another."""
        # Let go of it first: its end wakes a thread that posts, which opens the next one at once.
        sock, self._sock = self._sock, None
        if sock is not None:
            release(sock)

    def _post(self, sock: socket.socket, address: CallAddress, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        keep = False
        try:
            with contextlib.closing(_exchange(sock, address, path, body)) as response:
                answer = _object(_content(response))
                keep = not response.will_close
        finally:
            if not keep:
                self.close()
        return answer


@contextlib.contextmanager
def _translated(address: CallAddress) -> Iterator[None]:
    """Raise Unreachable for each fault, with a hint if one side speaks TLS and the other does not.

    OpenSSL's messages do not say that.
    """
    try:
        yield
    except _FAULTS as error:
        hint = ""
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            hint = " (it does not speak TLS: use http:// instead of https://?)"
        elif address.url.startswith("http:") and isinstance(error, (ConnectionResetError, http.client.BadStatusLine)):
            hint = " (if it speaks TLS, use https:// instead of http://)"
        raise Unreachable(f"{address.url}: {error or type(error).__name__}{hint}") from error


def _connect(address: CallAddress, timeout: float) -> socket.socket:
    if address.url.startswith(LOCAL_SCHEME):
        return connect_locally(address.url[len(LOCAL_SCHEME) :], timeout)
    parts = urlsplit(address.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http:// or https:// address")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    failure: OSError = OSError("the host name has no address")
    # As bytes: a str would go through the idna codec, whose first use imports modules in this thread.
    found = socket.getaddrinfo(parts.hostname.encode("ascii"), port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, where in found:
        sock = adopt(socket.socket(family, kind, protocol))  # before it connects, because a fork may happen meanwhile
        try:
            sock.settimeout(timeout)
            sock.connect(where)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        except OSError as error:
            failure = error
            release(sock)
        else:
            return sock if parts.scheme == "http" else _wrap_tls(sock, address.ca, parts.hostname)
    raise failure


def _wrap_tls(sock: socket.socket, ca: Path | None, host: str) -> socket.socket:
    try:
        try:
            context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        except OSError as error:
            raise ValueError(f"{ca} contains no CA certificate: {error}") from error
        secure = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except _FAULTS:
        release(sock)
        raise
    _open.discard(sock)  # not closed: the other object has taken its descriptor over
    adopt(secure)
    try:
        secure.do_handshake()
    except _FAULTS:
        release(secure)
        raise
    return secure


def _exchange(
    sock: socket.socket,
    address: CallAddress,
    path: str,
    body: Mapping[str, Any],
    more: Mapping[str, str] | None = None,
) -> http.client.HTTPResponse:
    """Post and return the response, of which only the head is read. Raises CallRefused, or one of `_FAULTS`."""
    parts = urlsplit(address.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.sock = sock
    headers = {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json", **(more or {})}
    connection.request("POST", path, json.dumps(body, allow_nan=False).encode(), headers)
    response = connection.getresponse()
    if response.status == http.client.OK:
        return response
    with contextlib.closing(response):
        try:
            answer = _object(_content(response))
        except _FAULTS:
            answer = {}
        message = str(answer.get("message", response.reason))
        raise CallRefused(response.status, str(answer.get("error", "")), message)


def _content(response: http.client.HTTPResponse) -> bytes:
    content = response.read(MAX_LINE + 1)
    if len(content) > MAX_LINE:
        raise ValueError("the answer is too long")
    return content


def _object(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the peer's fault, not a wrong type of the caller
    return message


def adopt(sock: socket.socket) -> socket.socket:
    """Remember an open socket, and return it. Call it before the socket connects: a fork may happen meanwhile."""
    _open.add(sock)
    return sock


def shut(sock: socket.socket) -> None:
    """Shut a connection down, from any thread: a thread that reads it wakes up, and so does the peer."""
    # Use the plain socket's shutdown also for TLS: SSLSocket's would remove the session that a reading thread uses.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def release(sock: socket.socket) -> None:
    """Close a socket and forget it."""
    # Shut down first, so that the peer sees the end even if a forked child still has a copy of the descriptor.
    shut(sock)
    sock.close()
    _open.discard(sock)


def abandon_in_child() -> None:
    """Release the parent's connections in a forked child, without sending anything on them.

    The child's copies of the descriptors would keep a dead parent's streams open, and the name of its relay taken. They
    cannot be closed cleanly here (locks may be held by threads that do not exist in the child), so /dev/null replaces
    them.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for sock in _open:
        if sock.fileno() >= 0:
            os.dup2(null, sock.fileno(), inheritable=False)
    os.close(null)
    _open.clear()


# Sockets between the processes of one user on one machine or in one pod. Their names are in Linux's abstract namespace.
# They need no file, so a read-only file system does not matter, and the kernel frees a name at once when its process
# dies. Anybody may take a name, so each side checks the user of the other.


def listen_locally(name: str) -> socket.socket:
    """Take a name and listen on it. Raises OSError if it is taken, or if the system has no such names."""
    sock = _local_socket()
    try:
        sock.bind(_ABSTRACT_PREFIX + name)
        sock.listen(_BACKLOG)
    except OSError:
        release(sock)
        raise
    return sock


def connect_locally(name: str, timeout: float) -> socket.socket:
    """Connect to the process that listens on a name. Raises OSError, also if it is another user's."""
    sock = _local_socket()
    try:
        sock.settimeout(timeout)
        sock.connect(_ABSTRACT_PREFIX + name)
        if not is_own_user(sock):
            raise PermissionError("the name is taken by another user")
    except OSError:
        release(sock)
        raise
    return sock


def is_own_user(sock: socket.socket) -> bool:
    """Return whether the peer of a connection belongs to the user of this process. Raises OSError."""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.geteuid())


def _local_socket() -> socket.socket:
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError("the system does not tell the user of a peer")
    return adopt(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
