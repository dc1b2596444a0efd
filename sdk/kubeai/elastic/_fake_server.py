"""The sockets and threads of `testing.FakeSupervisor`: one thread per connection, none left after `stop`."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Dict, Union, cast

if TYPE_CHECKING:
    from collections.abc import Callable

Line = Dict[str, Any]

_DROP = b""
_END = b"\0"


@dataclass(frozen=True)
class Call:
    """A POST request."""

    path: str
    token: str
    body: Line


@dataclass(frozen=True)
class Refusal:
    """An error response with a code of the wire contract."""

    status: int
    code: str
    message: str


@dataclass(eq=False)
class OpenStream:
    """An accepted stream. Data is sent in the order in which it is queued."""

    hello: Line
    token: str
    _out: queue.SimpleQueue[bytes] = field(default_factory=queue.SimpleQueue)

    def send(self, data: bytes) -> None:
        """Send raw bytes in a chunk of their own."""
        self._out.put(data)

    def send_line(self, line: Line) -> None:
        """Send a message as one line of JSON."""
        self.send(json.dumps(line).encode() + b"\n")

    def drop(self) -> None:
        """Break the connection after the data queued so far."""
        self._out.put(_DROP)

    def end(self) -> None:
        """End the stream cleanly after the data queued so far."""
        self._out.put(_END)

    def copy_to(self, write: Callable[[bytes], Any], heartbeat: float) -> None:
        """Write queued data until the stream is dropped or ended, or until a write fails with OSError."""
        while True:
            try:
                data = self._out.get(timeout=heartbeat)
            except queue.Empty:
                data = b'{"type": "heartbeat"}\n'
            if data == _DROP:
                return
            if data == _END:
                write(b"0\r\n\r\n")
                return
            write(b"%x\r\n%s\r\n" % (len(data), data))


Reply = Union[Line, Refusal, OpenStream]


class FakeServer:
    """Listens on loopback. Calls `on_call` for every POST and `on_closed` for every stream that has ended."""

    def __init__(
        self,
        port: int,
        on_call: Callable[[Call], Reply],
        on_closed: Callable[[OpenStream], None],
        heartbeat: float,
    ) -> None:
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.on_call = on_call
        self._server.on_closed = on_closed
        self._server.heartbeat = heartbeat
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="fake-supervisor")
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, wake every connection that waits for a request, and join all threads."""
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()


class _Server(ThreadingMixIn, TCPServer):
    allow_reuse_address = True  # the same port again at once
    daemon_threads = False  # so that server_close waits for them
    request_queue_size = 128
    on_call: Callable[[Call], Reply]
    on_closed: Callable[[OpenStream], None]
    heartbeat: float

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._connections.discard(request)

    def hang_up(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: tests disconnect on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.close_connection = True
        server = cast("_Server", self.server)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        token = self.headers.get("Authorization", "").partition("Bearer ")[2]
        reply = server.on_call(Call(self.path, token, body))
        if isinstance(reply, OpenStream):
            self._stream(server, reply)
        elif isinstance(reply, Refusal):
            self._object(reply.status, {"error": reply.code, "message": reply.message})
        else:
            self._object(200, reply)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing, so that the test's output stays readable."""

    def _object(self, status: int, content: Line) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, server: _Server, stream: OpenStream) -> None:
        try:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            stream.copy_to(self.wfile.write, server.heartbeat)
        finally:
            server.on_closed(stream)
