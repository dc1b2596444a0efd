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
from supervisor.decide.registration import acknowledge, admit, is_answer
from supervisor.domain.ids import Host
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Stop, SupervisedJob
from supervisor.domain.order import Worker
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
from supervisor.refusals import Refusals, readable
from supervisor.store.interface import Store

MAX_MESSAGE_BYTES = 16 * 1024

MAX_ERROR = 300
"""Characters of an error that are kept, of which a disk that is full needs a hundred."""

UNKNOWN_ERROR = "it did not say why"

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
    FAILED = "failed"
    AGREEMENT = "agreement"
    RESUMED = "resumed"


_ACKNOWLEDGEMENTS = (ReportKind.SAVED, ReportKind.LEFT, ReportKind.FAILED)


class Report(AgreementAnswer, frozen=True, kw_only=True):
    """One report of a process; `generation` is that of the directive that it answers, if it answers one.

    `error` is why it has saved nothing, in a report that it could not, or that it left for that reason.
    """

    process: Text
    host: Text
    rank: Count | None
    run: Count | None = None
    generation: Count | None = None
    kind: ReportKind
    error: Annotated[str, Meta(max_length=4096)] = ""

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
        self.saves.has(worker, hello.step)
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
        if sent.kind is ReportKind.RESUMED and sent.step is not None:
            self._resumed(worker, sent.step)
        is_late = False
        if sent.kind is ReportKind.SAVED:
            is_late = self.saves.is_older(worker, sent.step)
            if not is_late:
                self.saves.saved(worker, sent.checkpoint_seconds, self.clock.now(), sent.step)
        if sent.kind in _ACKNOWLEDGEMENTS and not is_late:
            await self._acknowledge(worker, sent)

    def _worker(self, principal: Process, message: Hello | Report) -> Worker:
        """The process that sent a message. Its token may name its host. Raises as `sender_run`."""
        job, run = sender_run(self.store, principal, message.run)
        return Worker(message.process, job, run, principal.host or Host(message.host), message.rank)

    def _resumed(self, worker: Worker, step: int) -> None:
        saved = self.saves.step_of(worker.job)
        if worker.rank == 0 and saved is not None and step < saved:
            # Such as one that has loaded its checkpoint and counts from 0 all the same.
            _log.warning(
                "run.resumed_below_checkpoint", job=worker.job.name, run=worker.run, step=step, saved_step=saved
            )
        self.saves.resumed(worker, step)

    async def _acknowledge(self, worker: Worker, sent: Report) -> None:
        answer = self._answer(worker, sent)
        needs_all = bool(sent.collective)
        speaker, counts = self._speaker(worker, answer.generation), False

        def change(known: SupervisedJob | None) -> SupervisedJob | None:
            nonlocal counts
            job = acknowledge(admit(known, worker.job.uid, worker.run), speaker, answer, collective=needs_all)
            counts = job != known
            return job

        if worker.rank is None:  # Stored as the job's answer, it has to be counted already.
            self._acknowledge_together(worker, answer, sent)
        failpoint(At.ACKNOWLEDGEMENT_RECEIVED)
        await self.store.put_job(worker.job.name, change)
        failpoint(At.ACKNOWLEDGEMENT_STORED)
        if worker.rank is not None:  # Counted as the last one before it is stored, it would take no failure back.
            self._acknowledge_together(worker, answer, sent)
        if not counts:  # Otherwise one token could fill the log with repetitions.
            return
        _log.info(
            "directive.acknowledged",
            job=worker.job.name,
            run=worker.run,
            generation=answer.generation,
            kind=answer.kind,
            rank=sent.rank,
            host=worker.host,
            step=sent.step,
            error=answer.error,
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

    def _answer(self, worker: Worker, sent: Report) -> Acknowledgement:
        """What a report says about the STOP."""
        error = self._error(worker, sent)
        return Acknowledgement(
            run=worker.run,
            generation=sent.generation or 0,
            kind=AcknowledgementKind.FAILED if error else AcknowledgementKind(sent.kind),
            step=sent.step,
            at=self.clock.now(),
            rank=worker.rank or 0,
            error=error,
            has_left=bool(error) and sent.kind is ReportKind.LEFT,
            resumes_from=self.saves.step_before(worker.job, sent.step) if error else None,
        )

    def _error(self, worker: Worker, sent: Report) -> str:
        """Why nothing is saved for the STOP; empty if something may be. The parts of different steps make no whole."""
        if sent.kind is not ReportKind.SAVED:
            error = readable(sent.error, MAX_ERROR)
            return error or (UNKNOWN_ERROR if sent.kind is ReportKind.FAILED else "")
        stop = self._agreed_stop(worker)
        other = None if stop is None else self.ranks.saved_otherwise(worker, stop.generation, sent.step)
        if not sent.collective or other is None:
            return ""
        return f"its checkpoint is of step {sent.step}, and that of rank {other[0]} of step {other[1]}"

    def _acknowledge_together(self, worker: Worker, answer: Acknowledgement, sent: Report) -> None:
        """Counts an acknowledgement of a STOP at an agreed step, which every rank has to give."""
        stop, job = self._agreed_stop(worker), self.store.snapshot().jobs.get(worker.job.name)
        if stop is None or job is None or not is_answer(job, worker.run, answer):
            return
        if sent.kind is not ReportKind.FAILED:  # It may try again, until it leaves.
            saved = sent.step if sent.kind is ReportKind.SAVED else None
            self.ranks.acknowledged(worker, stop.generation, saved)

    def _agreed_stop(self, worker: Worker) -> Stop | None:
        """The present STOP of a job if it is at an agreed step."""
        job = self.store.snapshot().jobs.get(worker.job.name)
        return None if job is None or job.id != worker.job or job.decision.agreed_stop is None else job.decision.stop
