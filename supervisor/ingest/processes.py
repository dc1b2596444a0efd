"""What training processes say: their hello, changed ranks, and acknowledgements."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import Meta

from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from supervisor.decide.registration import acknowledge, admit, run_of
from supervisor.domain.directive import Worker
from supervisor.domain.ids import Host
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, SupervisedJob
from supervisor.failpoints import At
from supervisor.fanout.lines import LineStream
from supervisor.fanout.processes import Processes
from supervisor.identity.tokens import Process
from supervisor.ingest.errors import ForeignTokenError, MalformedError, TooManyError
from supervisor.ingest.http import Authenticate, body, done, printable, require_principal
from supervisor.refusals import Refusals
from supervisor.store.interface import Store

_MAX_BYTES = 16 * 1024

Count = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(min_length=1, max_length=253)]

_log = structlog.get_logger()


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first and only message of a process's stream."""

    process: Text
    host: Text
    rank: Count | None
    pid: Count
    step: Count | None = None
    run: Count | None = None
    sdk: Annotated[str, Meta(max_length=253)] = ""

    def __post_init__(self) -> None:
        printable("process", self.process)
        printable("host", self.host)


class ReportKind(StrEnum):
    """What a process may report."""

    RANK = "rank"
    SAVED = "saved"
    LEFT = "left"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One report of a process; `generation` is that of the directive it answers."""

    process: Text
    host: Text
    rank: Count | None
    step: Count | None = None
    run: Count | None = None
    generation: Count
    kind: ReportKind

    def __post_init__(self) -> None:
        printable("process", self.process)
        printable("host", self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEndpoints:
    """`/v1/processes/…`; `on_step` is told which step a process says that it is at."""

    store: Store
    processes: Processes
    refusals: Refusals
    authenticate: Authenticate
    clock: Clock
    on_step: Callable[[Worker, int | None], None] = lambda _worker, _step: None

    def routes(self) -> list[web.RouteDef]:
        """What is served here."""
        return [web.post("/v1/processes/stream", self.stream), web.post("/v1/processes/report", self.report)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Sends directives until either side ends."""
        speaker = await require_principal(Process, request, self.authenticate)
        hello = await body(request, Hello, _MAX_BYTES)
        worker = self._worker(speaker, hello)
        if self.processes.full(speaker.job):
            raise TooManyError(f"{speaker.job} has as many streams as a job may have")
        lines = LineStream(request, self.refusals)
        await lines.prepare()
        self.processes.attach(worker, lines)
        self.on_step(worker, hello.step)
        try:
            return await lines.serve()
        finally:
            self.processes.detach(worker, lines)

    async def report(self, request: web.Request) -> web.Response:
        """Takes a changed rank, or stores an acknowledgement."""
        speaker = await require_principal(Process, request, self.authenticate)
        sent = await body(request, Report, _MAX_BYTES)
        if speaker.run is not None and sent.run is None:
            raise MalformedError("run must be said")
        worker = self._worker(speaker, sent)
        self.processes.rank(speaker.job, sent.process, sent.rank)
        self.on_step(worker, sent.step)
        if sent.kind is not ReportKind.RANK:
            await self._acknowledge(speaker.uid, worker, sent)
        return done()

    def _worker(self, speaker: Process, said: Hello | Report) -> Worker:
        """Who speaks: its host and run are its token's, where that names them.

        Raises:
            ForeignTokenError: It speaks of another run than its token.
            UnknownJobError: There is no such job, or no run of it yet.
            RunIsOverError: A later run has begun, or the job is over.
        """
        job = self.store.snapshot().jobs.get(speaker.job)
        run = speaker.run
        if run is None:
            run = run_of(job, speaker.uid, said.run)
        elif said.run not in (run, None):
            raise ForeignTokenError(f"the token speaks for run {run}")
        admit(job, speaker.uid, run)
        return Worker(said.process, speaker.job, run, speaker.host or Host(said.host), said.rank)

    async def _acknowledge(self, uid: str, worker: Worker, sent: Report) -> None:
        acknowledgement = Acknowledgement(
            run=worker.run,
            generation=sent.generation,
            kind=AcknowledgementKind(sent.kind),
            step=sent.step,
            at=self.clock.now(),
        )

        counts = False

        def change(known: SupervisedJob | None) -> SupervisedJob | None:
            nonlocal counts
            job = acknowledge(admit(known, uid, worker.run), worker, acknowledgement)
            counts = job != known
            return job

        failpoint(At.ACKNOWLEDGEMENT_RECEIVED)
        await self.store.put_job(worker.job, change)
        failpoint(At.ACKNOWLEDGEMENT_STORED)
        if not counts:  # Nobody waits for it, and one token must not fill the log.
            return
        _log.info(
            "directive.acknowledged",
            job=worker.job,
            run=worker.run,
            generation=sent.generation,
            kind=sent.kind,
            rank=sent.rank,
            host=worker.host,
            step=sent.step,
        )
