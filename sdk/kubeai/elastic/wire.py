"""The client side of the HTTP contract with the supervisor: short posts and line streams.

http.client is used directly. Nothing here follows redirects or uses a proxy from the environment, so a token is sent
to the configured address only.

    Refused       the supervisor refused the call; `code` says what to do next
    Unreachable   there was no usable answer; try again later
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import local, sockets
from .framing import MAX_LINE, ChunkDecoder, LineSplitter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_CONNECT_SECONDS = 5.0
_HEARTBEATS = 3  # that are missed before the supervisor counts as silent
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}  # Linux has all of them
_HEAD_SECONDS = 15.0
_NO_HEADERS: dict[str, str] = {}
_RECEIVE_BYTES = 65536
_REPLACED_WITHIN = 1.0  # seconds over which clients spread their attempts while a lost supervisor is replaced
_OF_THE_ABSENCE = 1 / 4
_FAULTS = (OSError, http.client.HTTPException, ValueError)


class Refused(Exception):  # noqa: N818 - the name describes the outcome
    """The supervisor refused the call. `code` is the contract's word, or "" if the answer had none."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"refused with {status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class Unreachable(Exception):  # noqa: N818 - as above
    """There was no usable answer: no listener, a broken connection, or a response that violates the contract."""


@dataclass(frozen=True)
class Endpoint:
    """Where to call: `http://HOST:PORT` or `https://HOST:PORT`, with a bearer token and an optional CA file (PEM).

    A relay is at `unix:NAME`, see `local`.
    """

    address: str
    token: str = field(repr=False)
    ca: Path | None = None


class Backoff:
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


class Stream:
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
        self._closed = False
        self.was_silent = False
        self._chunks = ChunkDecoder()
        self._lines = LineSplitter()

    def __enter__(self) -> Stream:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (message for message in self.messages() if message.get("type") != "heartbeat")

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield each line as iterating does, and heartbeats too."""
        yield from self._messages(self._first)
        while not self._chunks.ended:
            data = self._receive()
            if not data:
                return
            yield from self._messages(data)

    def close(self) -> None:
        """End the stream, from any thread. A waiting reader wakes up and its iteration ends."""
        self._closed = True
        sockets.shut(self._sock)
        # The shutdown wakes the reader, which releases the lock. Closing earlier would free the descriptor's number
        # while the reader still uses it.
        with self._reading:
            self._response.close()
            sockets.release(self._sock)

    def _messages(self, data: bytes) -> Iterator[dict[str, Any]]:
        try:
            for line in self._lines.feed(self._chunks.feed(data)):
                yield _object(line)
        except ValueError as error:
            raise Unreachable(f"malformed stream: {error}") from error

    def _receive(self) -> bytes:
        try:
            with self._reading:
                data = self._sock.recv(_RECEIVE_BYTES)
        except socket.timeout as error:
            self.was_silent = True
            raise Unreachable(f"no data for {self._silence:g} s") from error
        except _FAULTS as error:
            if self._closed:
                return b""
            raise Unreachable(f"the stream broke: {error}") from error
        if not data and not self._closed:
            raise Unreachable("the stream ended unexpectedly")
        return data


def post(endpoint: Endpoint, path: str, body: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """Post a JSON object and return the response. Raises Refused or Unreachable. `timeout` is per step."""
    with _translated(endpoint), contextlib.ExitStack() as stack:
        sock = _connect(endpoint, timeout)
        stack.callback(sockets.release, sock)
        response = _exchange(sock, endpoint, path, body)
        stack.callback(response.close)
        return _object(_content(response))


def open_stream(endpoint: Endpoint, path: str, hello: Mapping[str, Any], silence: float = 60.0) -> Stream:
    """Send the hello and return the stream. Raises Refused or Unreachable.

    `silence` is the longest time in seconds without a byte from the supervisor, which is asked for three heartbeats in
    it. That finds a supervisor that hangs; the kernel finds one whose machine is gone.
    """
    with _translated(endpoint), contextlib.ExitStack() as stack:
        sock = _connect(endpoint, min(_CONNECT_SECONDS, silence))
        stack.callback(sockets.release, sock)
        sock.settimeout(min(_HEAD_SECONDS, silence))
        response = _exchange(sock, endpoint, path, hello, {"Heartbeat-Seconds": f"{silence / _HEARTBEATS:g}"})
        stack.callback(response.close)
        if not response.chunked:
            raise Unreachable(f"{endpoint.address} did not answer with a stream")
        stream = Stream(sock, response, _buffered(sock, response, silence), silence)
        stack.pop_all()
        return stream


class Connection:
    """A connection for one post after another. It is opened when it is needed, and again after the peer has closed it.

    A post may then be sent twice, so only what may be repeated is posted.
    """

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        self._endpoint: Endpoint | None = None

    def post(self, endpoint: Endpoint, path: str, body: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
        """Post as the function `post` does."""
        with _translated(endpoint):
            sock = self._sock if endpoint == self._endpoint else None
            if sock is not None:
                try:
                    return self._post(sock, endpoint, path, body)
                except socket.timeout:
                    raise
                except _FAULTS:
                    pass  # the peer has closed a connection that was idle
            self.close()
            sock = _connect(endpoint, timeout)
            self._sock, self._endpoint = sock, endpoint
            return self._post(sock, endpoint, path, body)

    def close(self) -> None:
        """Close the connection, from any thread; the next post opens another."""
        # Let go of it first: its end wakes a thread that posts, which opens the next one at once.
        sock, self._sock = self._sock, None
        if sock is not None:
            sockets.release(sock)

    def _post(self, sock: socket.socket, endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        keep = False
        try:
            with contextlib.closing(_exchange(sock, endpoint, path, body)) as response:
                answer = _object(_content(response))
                keep = not response.will_close
        finally:
            if not keep:
                self.close()
        return answer


@contextlib.contextmanager
def _translated(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except _FAULTS as error:
        raise Unreachable(f"{endpoint.address}: {error or type(error).__name__}{_hint(endpoint, error)}") from error


def _hint(endpoint: Endpoint, error: Exception) -> str:
    """Return a hint if one side speaks TLS and the other does not, which OpenSSL's messages do not say."""
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return " (it does not speak TLS: use http:// instead of https://?)"
    if endpoint.address.startswith("http:") and isinstance(error, (ConnectionResetError, http.client.BadStatusLine)):
        return " (if it speaks TLS, use https:// instead of http://)"
    return ""


def _connect(endpoint: Endpoint, timeout: float) -> socket.socket:
    if endpoint.address.startswith(local.SCHEME):
        return local.connect(endpoint.address[len(local.SCHEME) :], timeout)
    parts = urlsplit(endpoint.address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http:// or https:// address")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    sock = _connect_any(parts.hostname, port, timeout)
    return sock if parts.scheme == "http" else _wrap_tls(sock, endpoint, parts.hostname)


def _connect_any(host: str, port: int, timeout: float) -> socket.socket:
    failure: OSError = OSError("the host name has no address")
    # As bytes: a str would go through the idna codec, whose first use imports modules in this thread.
    for family, kind, protocol, _, where in socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        sockets.adopt(sock)  # before it connects, because a fork may happen meanwhile
        try:
            sock.settimeout(timeout)
            sock.connect(where)
            _set_options(sock)
        except OSError as error:
            failure = error
            sockets.release(sock)
        else:
            return sock
    raise failure


def _set_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _wrap_tls(sock: socket.socket, endpoint: Endpoint, host: str) -> socket.socket:
    try:
        context = _tls_context(endpoint.ca)
        secure = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except _FAULTS:
        sockets.release(sock)
        raise
    sockets.disown(sock)
    sockets.adopt(secure)
    try:
        secure.do_handshake()
    except _FAULTS:
        sockets.release(secure)
        raise
    return secure


def _tls_context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as error:
        raise ValueError(f"{ca} contains no CA certificate: {error}") from error


def _exchange(
    sock: socket.socket, endpoint: Endpoint, path: str, body: Mapping[str, Any], more: Mapping[str, str] = _NO_HEADERS
) -> http.client.HTTPResponse:
    parts = urlsplit(endpoint.address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.sock = sock
    headers = {"Authorization": f"Bearer {endpoint.token}", "Content-Type": "application/json", **more}
    connection.request("POST", path, json.dumps(body, allow_nan=False).encode(), headers)
    response = connection.getresponse()
    if response.status != http.client.OK:
        with contextlib.closing(response):
            raise _refusal(response)
    return response


def _refusal(response: http.client.HTTPResponse) -> Refused:
    try:
        answer = _object(_content(response))
    except _FAULTS:
        answer = {}
    return Refused(response.status, str(answer.get("error", "")), str(answer.get("message", response.reason)))


def _content(response: http.client.HTTPResponse) -> bytes:
    content = response.read(MAX_LINE + 1)
    if len(content) > MAX_LINE:
        raise ValueError("the answer is too long")
    return content


def _buffered(sock: socket.socket, response: http.client.HTTPResponse, silence: float) -> bytes:
    """Return what http.client has read beyond the response head. Never waits."""
    sock.settimeout(0)
    try:
        return response.fp.peek()
    except ssl.SSLWantReadError:
        return b""
    finally:
        sock.settimeout(silence)


def _object(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the peer's fault, not a wrong type of the caller
    return message
