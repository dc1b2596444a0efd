"""The endpoints for training processes: the stream, and reports of ranks and acknowledgements."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import structlog
from aiohttp import web
from msgspec import Meta

from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from supervisor.decide.registration import acknowledge, admit
from supervisor.domain.directive import Worker
from supervisor.domain.ids import Host
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, SupervisedJob
from supervisor.failpoints import At
from supervisor.fanout.lines import LineStream
from supervisor.fanout.processes import Processes, ProcessStream
from supervisor.fanout.ranks import RankStates
from supervisor.fanout.saves import Saves
from supervisor.identity.tokens import Process
from supervisor.ingest.agreements import AgreeingProcess, AgreementAnswer, Held
from supervisor.ingest.errors import MalformedError, TooManyError
from supervisor.ingest.http import Authenticate, body, done, printable, require_principal
from supervisor.ingest.senders import sender_run
from supervisor.refusals import Refusals
from supervisor.store.interface import Store

MAX_MESSAGE_BYTES = 16 * 1024

Count = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(min_length=1, max_length=253)]

_log = structlog.get_logger()


class Hello(AgreeingProcess, frozen=True, kw_only=True):
    """The first and only message of a process's stream."""

    process: Text
    host: Text
    rank: Count | None
    pid: Count
    step: Count | None = None
    run: Count | None = None
    attempt: Count | None = None
    sdk: Annotated[str, Meta(max_length=253)] = ""
    agreement: Held | None = None

    def __post_init__(self) -> None:
        printable("process", self.process)
        printable("host", self.host)


class ReportKind(StrEnum):
    """The kinds of reports."""

    RANK = "rank"
    SAVED = "saved"
    LEFT = "left"
    AGREEMENT = "agreement"
    RESUMED = "resumed"


_ACKNOWLEDGEMENTS = (ReportKind.SAVED, ReportKind.LEFT)


class Report(AgreementAnswer, frozen=True, kw_only=True):
    """One report of a process; `generation` is that of the directive that it answers, if it answers one."""

    process: Text
    host: Text
    rank: Count | None
    run: Count | None = None
    generation: Count | None = None
    kind: ReportKind

    def __post_init__(self) -> None:
        printable("process", self.process)
        printable("host", self.host)
        if self.generation is None and self.kind in (ReportKind.RANK, *_ACKNOWLEDGEMENTS):
            raise ValueError("generation must be set")
        if self.kind is ReportKind.AGREEMENT and (self.epoch is None or self.answer is None):
            raise ValueError("epoch and answer must be set")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEndpoints:
    """`/v1/processes/…`; `on_step` is called with the step that a process reports."""

    store: Store
    processes: Processes
    refusals: Refusals
    authenticate: Authenticate
    clock: Clock
    ranks: RankStates
    saves: Saves
    on_step: Callable[[Worker, int | None], None] = lambda _worker, _step: None

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/processes/stream", self.stream), web.post("/v1/processes/report", self.report)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Sends directives until either side ends."""
        principal = await require_principal(Process, request, self.authenticate)
        hello = await body(request, Hello, MAX_MESSAGE_BYTES)
        worker = self.admit(principal, hello)
        lines = LineStream(request, self.refusals)
        await lines.prepare()
        self.attach(worker, hello, lines)
        try:
            return await lines.serve()
        finally:
            self.processes.detach(worker, lines)

    async def report(self, request: web.Request) -> web.Response:
        """Handles a changed rank and an answer to an agreement, or stores an acknowledgement."""
        principal = await require_principal(Process, request, self.authenticate)
        await self.accept(principal, await body(request, Report, MAX_MESSAGE_BYTES))
        return done()

    def admit(self, principal: Process, hello: Hello) -> Worker:
        """The process that a hello is from. Raises as `_worker`, or TooManyError."""
        worker = self._worker(principal, hello)
        if self.processes.full(worker.job):
            raise TooManyError(f"{principal.job} has the maximum number of processes")
        return worker

    def attach(self, worker: Worker, hello: Hello, stream: ProcessStream) -> None:
        """Adds a process, whose lines go to `stream`, unless it has said hello again since."""
        if self.processes.attach(worker, stream, hello.revision, hello.attempt):
            self.ranks.said(worker, hello.statement(hello.agreement))
            self.on_step(worker, hello.step)

    async def accept(self, principal: Process, sent: Report) -> None:
        """Handles a report. Raises as `_worker`, MalformedError, or StoreUnavailableError."""
        if principal.run is not None and sent.run is None:
            raise MalformedError("run must be set")
        worker = self._worker(principal, sent)
        if self.processes.update(worker, sent.revision):
            self.ranks.said(worker, sent.statement())
        self.on_step(worker, sent.step)
        answer = sent.answered(self.clock.now()) if sent.kind is ReportKind.AGREEMENT else None
        if answer is not None:
            self.ranks.answered(worker, answer, sent.measured)
        if sent.kind is ReportKind.SAVED:
            self.saves.saved(worker, sent.checkpoint_seconds, self.clock.now())
        if sent.kind in _ACKNOWLEDGEMENTS:
            await self._acknowledge(worker, sent, sent.generation or 0)

    def _worker(self, principal: Process, message: Hello | Report) -> Worker:
        """The process that sent a message. Its token may name its host. Raises as `sender_run`."""
        job, run = sender_run(self.store, principal, message.run)
        return Worker(message.process, job, run, principal.host or Host(message.host), message.rank)

    async def _acknowledge(self, worker: Worker, sent: Report, generation: int) -> None:
        acknowledgement = Acknowledgement(
            run=worker.run,
            generation=generation,
            kind=AcknowledgementKind(sent.kind),
            step=sent.step,
            at=self.clock.now(),
        )

        speaker, counts = self._speaker(worker, generation), False

        def change(known: SupervisedJob | None) -> SupervisedJob | None:
            nonlocal counts
            job = acknowledge(admit(known, worker.job.uid, worker.run), speaker, acknowledgement)
            counts = job != known
            return job

        self._acknowledge_together(worker, generation)
        failpoint(At.ACKNOWLEDGEMENT_RECEIVED)
        await self.store.put_job(worker.job.name, change)
        failpoint(At.ACKNOWLEDGEMENT_STORED)
        if not counts:  # Otherwise one token could fill the log with repetitions.
            return
        _log.info(
            "directive.acknowledged",
            job=worker.job.name,
            run=worker.run,
            generation=generation,
            kind=sent.kind,
            rank=sent.rank,
            host=worker.host,
            step=sent.step,
        )

    def _speaker(self, worker: Worker, generation: int) -> Worker:
        """The process whose acknowledgement this is: rank 0 if it is the last of a run in which none knows its rank."""
        job = self.store.snapshot().jobs.get(worker.job.name)
        stop = None if job is None or job.id != worker.job else job.decision.stop
        if job is None or stop is None or worker.run != stop.run or worker.rank is not None:
            return worker
        is_told = stop.everyone or job.decision.agreed_stop is not None
        if not is_told or not stop.generation <= generation <= job.decision.generation:
            return worker
        return replace(worker, rank=0) if self.processes.answers_for_all(worker, stop.generation) else worker

    def _acknowledge_together(self, worker: Worker, generation: int) -> None:
        """Counts an acknowledgement of a STOP at an agreed step, which every rank has to give."""
        job = self.store.snapshot().jobs.get(worker.job.name)
        stop = None if job is None or job.id != worker.job or job.decision.agreed_stop is None else job.decision.stop
        if job is not None and stop is not None and stop.generation <= generation <= job.decision.generation:
            self.ranks.acknowledged(worker, stop.generation)
