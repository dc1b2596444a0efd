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

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import identity
from ._fake_server import FakeServer, OpenStream, Refusal

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from ._fake_server import Call, Line, Reply

T = TypeVar("T")

ALL = None
"""Every process, or the launcher of every job."""

PROCESSES = "/v1/processes/"
LAUNCHERS = "/v1/launchers/"

_ATTEMPTS = 20  # of `agree`
_DIRECTIVES = {"checkpoint": "CHECKPOINT", "regroup": "RUN"}  # of a commit; others are STOP


@dataclass(frozen=True)
class Message:
    """A received message: the hello of a stream or a report. Refused ones are not recorded."""

    path: str
    token: str
    body: Line


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
        self._streams: list[OpenStream] = []
        self._refusals: dict[str, Refusal] = {}
        self._directives: dict[str | int | None, Line] = {}
        self._orders: dict[str | None, Line] = {}
        self._generation = 0

    def __enter__(self) -> FakeSupervisor:  # noqa: PYI034 - typing.Self needs Python 3.11
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
        self._port = self._server.port

    def stop(self, *, goodbye: bool = False) -> None:
        """Break all streams, or end them cleanly with a goodbye, and stop listening. Waits for the threads."""
        with self._changed:
            server, self._server = self._server, None
            self._refusals[""] = Refusal(503, "not_serving", "the fake supervisor stops")
            for stream in self._streams:
                _close_stream(stream, goodbye=goodbye)
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
        identity.write(identity.Identity(Path(directory), self.address, self.job_token(job, run), job, run, None))

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
            self._refusals[path] = Refusal(status, code, message)

    def accept(self) -> None:
        """Stop refusing calls."""
        with self._changed:
            self._refusals.clear()

    def drop(self) -> None:
        """Break all open streams without a last line."""
        with self._changed:
            for stream in self._streams:
                stream.drop()

    def send_raw(self, data: bytes) -> None:
        """Send these bytes on every open stream."""
        with self._changed:
            for stream in self._streams:
                stream.send(data)

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

    def _answer(self, call: Call) -> Reply:
        with self._changed:
            reply = self._refusal(call) or self._granted(call)
            self._changed.notify_all()
            return reply

    def _refusal(self, call: Call) -> Refusal | None:
        kind = "fake-launcher" if call.path.startswith(LAUNCHERS) else "fake-job:"
        if not call.token.startswith(kind):
            return Refusal(401, "bad_token", "not a token of this fake supervisor")
        if call.path == LAUNCHERS + "stream" and self._is_live_elsewhere(call.body):
            return Refusal(409, "name_is_live", f"{call.body['job']} is live")
        return next((refusal for path, refusal in self._refusals.items() if call.path.startswith(path)), None)

    def _is_live_elsewhere(self, hello: Line) -> bool:
        live = [stream.hello for stream in self._streams if stream.hello.get("job") == hello["job"]]
        return any(other["instance"] != hello["instance"] for other in live)

    def _granted(self, call: Call) -> Reply:
        message = Message(call.path, call.token, call.body)
        if call.path in (PROCESSES + "report", LAUNCHERS + "report"):
            self.reports.append(message)
            self._remember(call.body)
            return {}
        if call.path not in (PROCESSES + "stream", LAUNCHERS + "stream"):
            return Refusal(404, "unknown_path", call.path)
        self.hellos.append(message)
        stream = OpenStream(dict(call.body), call.token)
        stream.send_line(self._directive(stream) if "process" in call.body else self._order(stream))
        self._streams.append(stream)
        return stream

    def _remember(self, report: Line) -> None:
        """Keep what the next line depends on: the rank of a process, the hosts of a launcher."""
        for stream in self._streams:
            if "process" in report and stream.hello.get("process") == report["process"]:
                stream.hello["rank"] = report["rank"]
            if "instance" in report and stream.hello.get("instance") == report["instance"]:
                stream.hello["report"] = report

    def _forget(self, stream: OpenStream) -> None:
        with self._changed:
            self._streams.remove(stream)
            self._changed.notify_all()

    def _directive(self, stream: OpenStream) -> Line:
        _, job, run = stream.token.split(":")
        override = next((self._directives[name] for name in _process_names(stream) if name in self._directives), {})
        neutral: Line = {"directive": "RUN", "act_in": 0, "seconds_left": None, "generation": 0, "release": False}
        about: Line = {"job": job, "run": int(run), "reason": "sent by a test", "notice": None}
        return {"type": "directive", **neutral, **about, **override}

    def _order(self, stream: OpenStream) -> Line:
        job = stream.hello["job"]
        override = self._orders.get(job) or self._orders.get(ALL) or {}
        run = override.get("run", 1)
        hosts = override.get("hosts", stream.hello.get("report", {}).get("hosts", []))
        exclusions = override.get("exclusions", [])
        neutral: Line = {"order": "run", "run": run, "stopping": False, "token": self.job_token(job, run)}
        about: Line = {"generation": 0, "phase": "Running", "reason": "sent by a test"}
        granted: Line = {"hosts": hosts, "exclusions": exclusions, "workers": len(set(hosts) - set(exclusions))}
        return {"type": "order", **neutral, **about, **granted, **override}


def _process_names(stream: OpenStream) -> tuple[str | int | None, ...]:
    """Return the names by which `direct` may address a process, the most specific first."""
    rank = stream.hello.get("rank")
    return (stream.hello["process"], ALL) if rank is None else (stream.hello["process"], rank, ALL)


def _close_stream(stream: OpenStream, *, goodbye: bool) -> None:
    if not goodbye:
        stream.drop()
        return
    stream.send_line({"type": "goodbye", "reason": "the fake supervisor stops"})
    stream.end()
