"""A fake supervisor for tests: it speaks the wire contract on loopback and decides nothing.

`FakeSupervisor` records what callers send and sends them what the test tells it to. It keeps no job alive, knows no
notices, checks no revision, and its tokens are worthless. A test against it shows that a script or command speaks the
contract, not that a real supervisor would decide the same.

    with FakeSupervisor() as supervisor:
        supervisor.write_identity(directory)          # KUBEAI_DIR of the process under test
        ...start the training process...
        supervisor.wait_for(lambda: supervisor.hellos)
        supervisor.direct(0, directive="STOP")        # to rank 0; or a process id, or ALL
        supervisor.wait_for(lambda: supervisor.reports_of("left"))
        supervisor.direct(ALL, directive="STOP", release=True)
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Dict, TypeVar, Union, cast

from . import identity

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

T = TypeVar("T")
Entered = TypeVar("Entered", bound="FakeSupervisor")
Line = Dict[str, Any]

ALL = None
"""Every process, or the launcher of every job."""

PROCESSES = "/v1/processes/"
LAUNCHERS = "/v1/launchers/"

_ATTEMPTS = 20  # of `agree`
_DIRECTIVES = {"checkpoint": "CHECKPOINT", "regroup": "RUN"}  # of a commit; others are STOP
_DROP = b""
_END = b"\0"


@dataclass(frozen=True)
class Message:
    """A call. Those that were not refused are recorded: the hello of each stream, and each report."""

    path: str
    token: str
    body: Line


@dataclass(frozen=True)
class FakeRefusal:
    """An error response with a code of the wire contract."""

    status: int
    code: str
    message: str


@dataclass(eq=False)
class FakeStream:
    """An accepted stream.

    Attributes:
        hello: The hello, with the last rank and hosts that were reported.
        token: That of the hello.
        out: The bytes to send, each in a chunk of its own. _DROP breaks the connection, _END ends it.
    """

    hello: Line
    token: str
    out: queue.SimpleQueue[bytes] = field(default_factory=queue.SimpleQueue)

    def send_line(self, line: Line) -> None:
        """Queue a message as one line of JSON."""
        self.out.put(json.dumps(line).encode() + b"\n")

    def copy_to(self, write: Callable[[bytes], Any], heartbeat: float) -> None:
        """Write queued data until the stream is dropped or ended, or until a write fails with OSError."""
        while True:
            try:
                data = self.out.get(timeout=heartbeat)
            except queue.Empty:
                data = b'{"type": "heartbeat"}\n'
            if data == _DROP:
                return
            if data == _END:
                write(b"0\r\n\r\n")
                return
            write(b"%x\r\n%s\r\n" % (len(data), data))


Reply = Union[Line, FakeRefusal, FakeStream]


class FakeSupervisor:
    """A fake supervisor, used as a context manager. No thread is left afterwards.

    Heartbeats come every `heartbeat` seconds. The last directive or order is also the first line of every stream opened
    later. Until then processes receive RUN, and launchers an order to run number 1.
    """

    launcher_token = "fake-launcher"  # noqa: S105 - a fake

    def __init__(self, heartbeat: float = 1.0) -> None:
        self.hellos: list[Message] = []
        self.reports: list[Message] = []
        self._heartbeat = heartbeat
        self._changed = threading.Condition()
        self._server: FakeServer | None = None
        self._port = 0
        self._streams: list[FakeStream] = []
        self._refusals: dict[str, FakeRefusal] = {}
        self._directives: dict[str | int | None, Line] = {}
        self._orders: dict[str | None, Line] = {}
        self._generation = 0

    def __enter__(self: Entered) -> Entered:  # noqa: PYI019 - typing.Self needs Python 3.11
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Its `http://HOST:PORT`, which stays the same after `stop` and `start`."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def open_streams(self) -> list[Line]:
        """The hellos of all open streams. A disconnected one stays until the next heartbeat."""
        with self._changed:
            return [stream.hello for stream in self._streams]

    def start(self) -> None:
        """Listen on a free port, and on the same port after a restart."""
        self._server = FakeServer(self._port, self._answer, self._forget, self._heartbeat)
        self._port = self._server.server_address[1]

    def stop(self, *, goodbye: bool = False) -> None:
        """Break all streams, or end them cleanly with a goodbye, and stop listening. Waits for the threads."""
        with self._changed:
            server, self._server = self._server, None
            self._refusals[""] = FakeRefusal(503, "not_serving", "the fake supervisor stops")
            for stream in self._streams:
                if goodbye:
                    stream.send_line({"type": "goodbye", "reason": "the fake supervisor stops"})
                stream.out.put(_END if goodbye else _DROP)
        if server is not None:
            server.stop()
        with self._changed:
            del self._refusals[""]

    @staticmethod
    def job_token(job: str, run: int) -> str:
        """Return the token of a run of a job."""
        return f"fake-job:{job}:{run}"

    def write_identity(self, directory: str | os.PathLike[str], job: str = "job", run: int = 1) -> None:
        """Make `directory` the identity directory of a process of this run."""
        identity.write(identity.RunIdentity(Path(directory), self.address, self.job_token(job, run), job, run, None))

    def direct(self, process: str | int | None = ALL, *, directive: str = "RUN", **fields: Any) -> None:
        """Send a directive to one process (its id, or its rank as an int) or to ALL. It replaces the previous one.

        `fields` are those of a line of type `directive`. Missing ones get neutral values. The generation increases.
        """
        with self._changed:
            self._generation += 1
            if process is ALL:
                self._directives.clear()
            self._directives[process] = {"generation": self._generation, "directive": directive, **fields}
            for stream in self._streams:
                if "process" in stream.hello and process in _process_names(stream):
                    stream.send_line(self._directive(stream))

    def order(self, job: str | None = ALL, *, order: str = "run", **fields: Any) -> None:
        """Send an order to one job's launcher or to ALL. `fields` are those of a line of type `order`."""
        with self._changed:
            self._generation += 1
            if job is ALL:
                self._orders.clear()
            self._orders[job] = {"generation": self._generation, "order": order, **fields}
            for stream in self._streams:
                if "instance" in stream.hello and job in (stream.hello["job"], ALL):
                    stream.send_line(self._order(stream))

    def refuse(self, status: int, code: str, message: str = "refused by a test", *, path: str = "/") -> None:
        """Refuse all later calls whose path begins with `path`, until `accept`."""
        with self._changed:
            self._refusals[path] = FakeRefusal(status, code, message)

    def accept(self) -> None:
        """Stop refusing calls."""
        with self._changed:
            self._refusals.clear()

    def drop(self) -> None:
        """Break all open streams without a last line."""
        with self._changed:
            for stream in self._streams:
                stream.out.put(_DROP)

    def send_raw(self, data: bytes) -> None:
        """Send these bytes on every open stream."""
        with self._changed:
            for stream in self._streams:
                stream.out.put(data)

    def reports_of(self, kind: str) -> list[Line]:
        """Return the processes' reports of one kind."""
        with self._changed:
            return [report.body for report in self.reports if report.body.get("kind") == kind]

    def answers_of(self, epoch: int) -> dict[str, Line]:
        """Return the last answer of each process to the agreement of an epoch, by process id."""
        answers = [report for report in self.reports_of("agreement") if report["epoch"] == epoch]
        return {answer["process"]: answer for answer in answers}

    def propose(self, epoch: int, step: int | None = None, *, purpose: str = "stop", **fields: Any) -> None:
        """Send an agreement that is not committed to ALL. Without a step it is a poll."""
        agreement = {"epoch": epoch, "purpose": purpose, "step": step, "committed": False}
        self.direct(ALL, agreement=agreement, **fields)

    def commit(self, epoch: int, step: int, *, purpose: str = "stop", **fields: Any) -> None:
        """Commit an agreement: ALL stop, save or pause at `step`."""
        agreement = {"epoch": epoch, "purpose": purpose, "step": step, "committed": True}
        directive = _DIRECTIVES.get(purpose, "STOP")
        self.direct(ALL, directive=directive, agreement=agreement, **fields)

    def agree(self, processes: int, *, purpose: str = "stop", epoch: int = 1, ahead: int = 3) -> int:
        """Agree with this many processes on a step and return it, as a real supervisor does. It takes a few attempts.

        A proposal is `ahead` steps beyond the largest step, and twice as many at each further attempt. The next
        agreement of the same job needs a larger `epoch`, at least 100 more. Raises TimeoutError.
        """
        for attempt in range(_ATTEMPTS):
            poll, proposal = epoch + 2 * attempt, epoch + 2 * attempt + 1
            self.propose(poll, purpose=purpose)
            step: int = max(answer["step"] for answer in self._answers(poll, processes)) + ahead * 2**attempt
            self.propose(proposal, step, purpose=purpose)
            if all(answer["answer"] == "accepted" for answer in self._answers(proposal, processes)):
                self.commit(proposal, step, purpose=purpose)
                return step
        raise TimeoutError(f"no agreement; received {self.reports_of('agreement')}")

    def wait_for(self, condition: Callable[[], T], seconds: float = 60.0) -> T:
        """Return the first true value of `condition()`. Raises TimeoutError after `seconds`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                value = condition()
                if value:
                    return value
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not within {seconds:g} s; received {self.hellos} and {self.reports}")
                self._changed.wait(0.02)  # bounded: the condition may become true without a message

    def _answers(self, epoch: int, processes: int) -> list[Line]:
        """Wait until this many processes have answered."""
        self.wait_for(lambda: len(self.answers_of(epoch)) >= processes)
        return list(self.answers_of(epoch).values())

    def _answer(self, call: Message) -> Reply:
        with self._changed:
            refusal = self._refusal(call)
            reply = self._granted(call) if refusal is None else refusal
            self._changed.notify_all()
            return reply

    def _refusal(self, call: Message) -> FakeRefusal | None:
        kind = "fake-launcher" if call.path.startswith(LAUNCHERS) else "fake-job:"
        if not call.token.startswith(kind):
            return FakeRefusal(401, "bad_token", "not a token of this fake supervisor")
        if call.path == LAUNCHERS + "stream":
            job, instance = call.body["job"], call.body["instance"]
            live = [stream.hello for stream in self._streams if stream.hello.get("job") == job]
            if any(other["instance"] != instance for other in live):
                return FakeRefusal(409, "name_is_live", f"{job} is live")
        return next((refusal for path, refusal in self._refusals.items() if call.path.startswith(path)), None)

    def _granted(self, call: Message) -> Reply:
        if call.path in (PROCESSES + "report", LAUNCHERS + "report"):
            self.reports.append(call)
            # The next line depends on the rank of a process, and on the hosts of a launcher.
            for stream in self._streams:
                if "process" in call.body and stream.hello.get("process") == call.body["process"]:
                    stream.hello["rank"] = call.body["rank"]
                if "instance" in call.body and stream.hello.get("instance") == call.body["instance"]:
                    stream.hello["report"] = call.body
            return {}
        if call.path not in (PROCESSES + "stream", LAUNCHERS + "stream"):
            return FakeRefusal(404, "unknown_path", call.path)
        self.hellos.append(call)
        stream = FakeStream(dict(call.body), call.token)
        stream.send_line(self._directive(stream) if "process" in call.body else self._order(stream))
        self._streams.append(stream)
        return stream

    def _forget(self, stream: FakeStream) -> None:
        with self._changed:
            self._streams.remove(stream)
            self._changed.notify_all()

    def _directive(self, stream: FakeStream) -> Line:
        _, job, run = stream.token.split(":")
        override = next((self._directives[name] for name in _process_names(stream) if name in self._directives), {})
        neutral: Line = {"directive": "RUN", "act_in": 0, "seconds_left": None, "generation": 0, "release": False}
        about: Line = {"job": job, "run": int(run), "reason": "sent by a test", "notice": None}
        return {"type": "directive", **neutral, **about, **override}

    def _order(self, stream: FakeStream) -> Line:
        job = stream.hello["job"]
        override = self._orders.get(job) or self._orders.get(ALL) or {}
        run = override.get("run", 1)
        hosts = override.get("hosts", stream.hello.get("report", {}).get("hosts", []))
        exclusions = override.get("exclusions", [])
        neutral: Line = {"order": "run", "run": run, "stopping": False, "token": self.job_token(job, run)}
        about: Line = {"generation": 0, "phase": "Running", "reason": "sent by a test"}
        granted: Line = {"hosts": hosts, "exclusions": exclusions, "workers": len(set(hosts) - set(exclusions))}
        return {"type": "order", **neutral, **about, **granted, **override}


def _process_names(stream: FakeStream) -> tuple[str | int | None, ...]:
    """Return the names by which `direct` may address a process, the most specific first."""
    rank = stream.hello.get("rank")
    return (stream.hello["process"], ALL) if rank is None else (stream.hello["process"], rank, ALL)


class FakeServer(ThreadingMixIn, TCPServer):
    """Listens on loopback. Calls `on_call` for every POST and `on_closed` for every stream that has ended."""

    allow_reuse_address = True  # the same port again at once
    daemon_threads = False  # so that server_close waits for them
    request_queue_size = 128

    def __init__(
        self,
        port: int,
        on_call: Callable[[Message], Reply],
        on_closed: Callable[[FakeStream], None],
        heartbeat: float,
    ) -> None:
        self.on_call = on_call
        self.on_closed = on_closed
        self.heartbeat = heartbeat
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _FakeHandler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="fake-supervisor")
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, wake every connection that waits for a request, and join all threads."""
        self.shutdown()
        self._thread.join()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection, and forget it."""
        super().shutdown_request(request)
        self._connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: tests disconnect on purpose."""


class _FakeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.close_connection = True
        server = cast("FakeServer", self.server)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        token = self.headers.get("Authorization", "").partition("Bearer ")[2]
        reply = server.on_call(Message(self.path, token, body))
        if isinstance(reply, FakeStream):
            self._stream(server, reply)
            return
        if isinstance(reply, FakeRefusal):
            status, content = reply.status, {"error": reply.code, "message": reply.message}
        else:
            status, content = 200, reply
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing, so that the test's output stays readable."""

    def _stream(self, server: FakeServer, stream: FakeStream) -> None:
        try:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            stream.copy_to(self.wfile.write, server.heartbeat)
        finally:
            server.on_closed(stream)
