"""Serves training processes over HTTP: the stream of directives, and reports of ranks, steps and saves.

A relay speaks for all training processes of a pod or machine: it has one stream for their lines, and sends their
messages in batches. Each message is that of a process's own calls, is accepted or refused for itself, and is answered
in the order sent.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import structlog
from aiohttp import web
from msgspec import Meta

from servicekit.bounds import LONGEST_SECONDS, pace
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from supervisor.decide.registration import acknowledge, admit, is_answer, run_of
from supervisor.domain.agreement import AnswerKind, Purpose, StepAnswer
from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Stop, SupervisedJob
from supervisor.domain.ledger import Account, TimeSpent
from supervisor.domain.order import Worker
from supervisor.failpoints import At
from supervisor.fanout.lines import LineResponse
from supervisor.fanout.processes import MAX_STREAMS, Processes, ProcessStream, RelayedStream, RelayStream
from supervisor.fanout.ranks import Measurements, RankStates, Saves, Statement
from supervisor.identity.tokens import ProcessPrincipal
from supervisor.ingest.errors import ForeignTokenError, MalformedError, OversizedError, TooManyError, UnknownRelayError
from supervisor.ingest.http import Authenticate, PrintableBody, body, decode, refused, require_principal
from supervisor.refusals import Refusals, readable
from supervisor.store.interface import Store

MAX_MESSAGE_BYTES = 16 * 1024

_MAX_BATCH = 64
_MAX_BATCH_BYTES = 1024 * 1024
"""Bounds of a relay's batch: how many messages, and how many bytes all of them have."""

MAX_ERROR = 300
"""Characters of an error that are kept, of which a disk that is full needs a hundred."""

UNKNOWN_ERROR = "it did not say why"

Count = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(min_length=1, max_length=253)]
Epoch = Annotated[int, Meta(ge=0, le=2**31)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
PurposeName = Annotated[str, Meta(max_length=63)]

_PURPOSES = frozenset(Purpose)

_NOTHING = msgspec.Raw(b"null")

_log = structlog.get_logger()


class HeldAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """The agreement that a process holds when it connects."""

    epoch: Epoch
    purpose: PurposeName
    step: Step | None = None
    committed: bool = False


class ProcessMessage(PrintableBody, frozen=True, kw_only=True):
    """The fields that hellos and reports share: the sender, its purposes of agreements, and its pace. See `RankState`.

    `revision` grows whenever the rank, or one of the fields below it, changes. It is None from an older SDK.
    """

    PRINTABLE = ("process", "host")

    process: Text
    host: Text
    rank: Count | None
    run: Count | None = None
    revision: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    agrees: Annotated[list[PurposeName], Meta(max_length=8)] | None = None
    collective: bool | None = None
    world_size: Annotated[int, Meta(ge=1, le=65536)] | None = None
    step_seconds: Seconds | None = None
    start_seconds: Seconds | None = None
    change_seconds: Seconds | None = None
    step: Step | None = None

    def statement(self, held: HeldAgreement | None = None) -> Statement:
        """Returns the statement of the process about itself, without purposes of a later version."""
        return Statement(
            purposes=None if self.agrees is None else frozenset(Purpose(each) for each in _PURPOSES & set(self.agrees)),
            collective=self.collective,
            world_size=self.world_size,
            step_seconds=pace(self.step_seconds),
            start_seconds=self.start_seconds,
            change_seconds=self.change_seconds,
            epoch=0 if held is None else held.epoch,
        )


class PostedTimeSpent(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has spent its time on since its start, and the steps that it has made. See `TimeSpent`."""

    seconds: Seconds
    starting: Seconds = 0.0
    saving: Seconds = 0.0
    agreeing: Seconds = 0.0
    changing: Seconds = 0.0
    first: Step
    highest: Step
    made: Step

    def read(self) -> TimeSpent:
        """Returns it by the accounts of the ledger."""
        spent = {
            Account.STARTING: self.starting,
            Account.SAVING: self.saving,
            Account.AGREEING: self.agreeing,
            Account.CHANGING: self.changing,
        }
        return TimeSpent(seconds=self.seconds, spent=spent, first=self.first, highest=self.highest, made=self.made)


class PostedProcessHello(ProcessMessage, frozen=True, kw_only=True):
    """Opens the stream of a process, and is its only message there."""

    pid: Count
    attempt: Count | None = None
    sdk: Annotated[str, Meta(max_length=253)] = ""
    agreement: HeldAgreement | None = None


class PostedReportKind(StrEnum):
    """The kinds of reports."""

    RANK = "rank"
    SAVED = "saved"
    KEPT = "kept"
    LEFT = "left"
    FAILED = "failed"
    AGREEMENT = "agreement"
    RESUMED = "resumed"


_OF_STATE = (PostedReportKind.SAVED, PostedReportKind.KEPT)
_ACKNOWLEDGEMENTS = (*_OF_STATE, PostedReportKind.LEFT, PostedReportKind.FAILED)


class PostedProcessReport(ProcessMessage, frozen=True, kw_only=True):
    """Reports one event of a process; `generation` is that of the directive that it answers, if it answers one.

    `error` is why the process has saved nothing, if its save failed or it left for that reason. The fields from `epoch`
    on belong to kind `agreement`: `step` is the rank's own, `at_step` that of the agreement.
    """

    generation: Count | None = None
    kind: PostedReportKind
    error: Annotated[str, Meta(max_length=4096)] = ""
    epoch: Epoch | None = None
    purpose: PurposeName | None = None
    at_step: Step | None = None
    answer: AnswerKind | None = None
    checkpoint_seconds: Seconds | None = None
    unread_seconds: Seconds | None = None
    spent: msgspec.Raw = _NOTHING

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.generation is None and self.kind in (PostedReportKind.RANK, *_ACKNOWLEDGEMENTS):
            raise ValueError("generation must be set")
        if self.kind is PostedReportKind.AGREEMENT and (self.epoch is None or self.answer is None):
            raise ValueError("epoch and answer must be set")

    def time_spent(self) -> TimeSpent | None:
        """Returns what the process has spent its time on; None if it does not say, or says what cannot be.

        That spoils no report: the report may be of the checkpoint for which a job waits.
        """
        try:
            posted = msgspec.json.decode(self.spent, type=PostedTimeSpent | None)
        except msgspec.DecodeError:
            return None
        return None if posted is None else posted.read()

    def answered(self, now: float) -> tuple[StepAnswer, Measurements] | None:
        """Returns the answer to an agreement, received at `now`, with what the process has measured.

        None from a rank that does not know its step.
        """
        if (
            self.kind is not PostedReportKind.AGREEMENT
            or self.epoch is None
            or self.answer is None
            or self.step is None
        ):
            return None
        measured = Measurements(
            step_seconds=pace(self.step_seconds),
            checkpoint_seconds=self.checkpoint_seconds,
            unread_seconds=self.unread_seconds,
        )
        answer = StepAnswer(epoch=self.epoch, at_step=self.at_step, kind=self.answer, step=self.step, at=now)
        return answer, measured


def sender_run(store: Store, principal: ProcessPrincipal, named: int | None) -> tuple[JobId, int]:
    """Returns the job and run of a message. The run is that of the token if the token names one, or else `named`.

    Raises:
        ForeignTokenError: The message names another run than the token.
        UnknownJobError: The job is unknown, or has no run yet.
        RunIsOverError: A later run has started, or the job has ended.
    """
    job = store.snapshot().jobs.get(principal.job)
    run = principal.run
    if run is None:
        run = run_of(job, principal.uid, named)
    elif named not in (run, None):
        raise ForeignTokenError(f"the token is for run {run}")
    return admit(job, principal.uid, run).id, run


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEndpoints:
    """`/v1/processes/…`; `on_step` is called with the step that a process reports, `on_spent` with its time."""

    store: Store
    processes: Processes
    refusals: Refusals
    authenticate: Authenticate
    clock: Clock
    ranks: RankStates
    saves: Saves
    on_step: Callable[[Worker, int | None], None] = lambda _worker, _step: None
    on_spent: Callable[[Worker, TimeSpent], None] = lambda _worker, _spent: None

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/processes/stream", self.stream), web.post("/v1/processes/report", self.report)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Sends directives until either side ends."""
        principal = await require_principal(ProcessPrincipal, request, self.authenticate)
        hello = await body(request, PostedProcessHello, MAX_MESSAGE_BYTES)
        worker = self.admit(principal, hello)
        lines = LineResponse(request, self.refusals)
        await lines.prepare()
        self.attach(worker, hello, lines)
        try:
            return await lines.serve()
        finally:
            self.processes.detach(worker, lines)

    async def report(self, request: web.Request) -> web.Response:
        """Handles a changed rank and an answer to an agreement, or stores an acknowledgement."""
        principal = await require_principal(ProcessPrincipal, request, self.authenticate)
        await self.accept(principal, await body(request, PostedProcessReport, MAX_MESSAGE_BYTES))
        return web.json_response({})

    def admit(self, principal: ProcessPrincipal, hello: PostedProcessHello) -> Worker:
        """Returns the process that a hello is from.

        Raises:
            ForeignTokenError, UnknownJobError, RunIsOverError: See `sender_run`.
            TooManyError: The job has the maximum number of processes.
        """
        worker = self._sender(principal, hello)
        if self.processes.full(worker.job):
            raise TooManyError(f"{principal.job} has the maximum number of processes")
        self.saves.has(worker, hello.step)
        return worker

    def attach(self, worker: Worker, hello: PostedProcessHello, stream: ProcessStream) -> None:
        """Adds a process, whose lines go to `stream`, unless a later hello of the process has come."""
        if self.processes.attach(worker, stream, hello.revision, hello.attempt):
            self.ranks.put_statement(worker, hello.statement(hello.agreement))
            self.on_step(worker, hello.step)

    async def accept(self, principal: ProcessPrincipal, sent: PostedProcessReport) -> None:
        """Handles a report.

        Raises:
            ForeignTokenError, UnknownJobError, RunIsOverError: See `sender_run`.
            MalformedError: The token names a run, and the report does not.
            StoreUnavailableError: An acknowledgement could not be stored.
        """
        if principal.run is not None and sent.run is None:
            raise MalformedError("run must be set")
        worker = self._sender(principal, sent)
        if self.processes.update(worker, sent.revision):
            self.ranks.put_statement(worker, sent.statement())
        self.on_step(worker, sent.step)
        if (spent := sent.time_spent()) is not None:
            self.on_spent(worker, spent)
        answered = sent.answered(self.clock.now())
        if answered is not None:
            self.ranks.answered(worker, *answered)
        if sent.kind is PostedReportKind.RESUMED and sent.step is not None:
            saved = self.saves.step_of(worker.job)
            if worker.rank == 0 and saved is not None and sent.step < saved:
                # Such as one that has loaded its checkpoint and counts from 0 all the same.
                _log.warning(
                    "run.resumed_below_checkpoint",
                    job=worker.job.name,
                    run=worker.run,
                    step=sent.step,
                    saved_step=saved,
                )
            self.saves.resumed(worker, sent.step)
        is_late = False
        if sent.kind is PostedReportKind.SAVED:
            is_late = self.saves.is_older(worker, sent.step)
            if not is_late:
                self.saves.saved(worker, sent.checkpoint_seconds, self.clock.now(), sent.step)
        if sent.kind in _ACKNOWLEDGEMENTS and not is_late:
            await self._acknowledge(worker, sent)

    def _sender(self, principal: ProcessPrincipal, message: ProcessMessage) -> Worker:
        """Returns the process that sent a message. Its token may name its host."""
        job, run = sender_run(self.store, principal, message.run)
        return Worker(message.process, job, run, principal.host or Host(message.host), message.rank)

    async def _acknowledge(self, worker: Worker, sent: PostedProcessReport) -> None:
        """Stores the answer to a STOP, and counts it if every rank has to answer."""
        answer = self._answer(worker, sent)
        needs_all = bool(sent.collective)
        speaker, counts = self._speaker(worker, answer.generation), False

        def change(known: SupervisedJob | None) -> SupervisedJob | None:
            nonlocal counts
            job = acknowledge(admit(known, worker.job.uid, worker.run), speaker, answer, collective=needs_all)
            counts = job != known
            return job

        if worker.rank is None:  # Stored as the job's answer, it has to be counted already.
            self._count_acknowledgement(worker, answer, sent)
        failpoint(At.ACKNOWLEDGEMENT_RECEIVED)
        await self.store.put_job(worker.job.name, change)
        failpoint(At.ACKNOWLEDGEMENT_STORED)
        if worker.rank is not None:  # Counted as the last one before it is stored, it would take no failure back.
            self._count_acknowledgement(worker, answer, sent)
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

    def _answer(self, worker: Worker, sent: PostedProcessReport) -> Acknowledgement:
        """Returns the answer of a report to the STOP. It has an error if nothing is saved."""
        error = ""
        if sent.kind not in _OF_STATE:
            error = readable(sent.error, MAX_ERROR)
            if not error and sent.kind is PostedReportKind.FAILED:
                error = UNKNOWN_ERROR
        elif sent.collective and (stop := self._agreed_stop(worker)) is not None:
            # The parts of different steps make no whole.
            other = self.ranks.saved_otherwise(worker, stop.generation, sent.step)
            if other is not None:
                error = f"its checkpoint is of step {sent.step}, and that of rank {other[0]} of step {other[1]}"
        return Acknowledgement(
            run=worker.run,
            generation=sent.generation or 0,
            kind=AcknowledgementKind.FAILED if error else AcknowledgementKind(sent.kind),
            step=sent.step,
            at=self.clock.now(),
            rank=worker.rank or 0,
            error=error,
            has_left=bool(error) and sent.kind is PostedReportKind.LEFT,
            resumes_from=self.saves.step_before(worker.job, sent.step) if error else None,
        )

    def _speaker(self, worker: Worker, generation: int) -> Worker:
        """Returns the process that an answer counts for.

        It is rank 0 if no process knows its rank and this was the last one.
        """
        job = self.store.snapshot().jobs.get(worker.job.name)
        stop = None if job is None or job.id != worker.job else job.decision.stop
        if job is None or stop is None or worker.run != stop.run or worker.rank is not None:
            return worker
        stops_all = stop.everyone or job.decision.agreed_stop is not None
        if not stops_all or not stop.generation <= generation <= job.decision.generation:
            return worker
        return replace(worker, rank=0) if self.processes.answers_for_all(worker, stop.generation) else worker

    def _count_acknowledgement(self, worker: Worker, answer: Acknowledgement, sent: PostedProcessReport) -> None:
        """Counts an acknowledgement of a STOP at an agreed step, which every rank has to give."""
        stop, job = self._agreed_stop(worker), self.store.snapshot().jobs.get(worker.job.name)
        if stop is None or job is None or not is_answer(job, worker.run, answer):
            return
        if sent.kind is not PostedReportKind.FAILED:  # It may try again, until it leaves.
            saved = sent.step if sent.kind in _OF_STATE else None
            self.ranks.acknowledged(worker, stop.generation, saved)

    def _agreed_stop(self, worker: Worker) -> Stop | None:
        """Returns the present STOP of a job if it is at an agreed step."""
        job = self.store.snapshot().jobs.get(worker.job.name)
        return None if job is None or job.id != worker.job or job.decision.agreed_stop is None else job.decision.stop


class RelayHello(PrintableBody, frozen=True, kw_only=True):
    """Opens the stream of a relay, and is its only message there; `relay` is a random id."""

    PRINTABLE = ("relay",)

    relay: Text


class RelayBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Carries messages of the relay's processes.

    Each is decoded separately, because a malformed one must not harm others.
    """

    relay: Text
    messages: Annotated[list[msgspec.Raw], Meta(max_length=_MAX_BATCH)]


class RelayedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Tells one of three events: a process joins the stream, reports, or has left the stream."""

    hello: PostedProcessHello | None = None
    report: PostedProcessReport | None = None
    gone: Text | None = None

    def __post_init__(self) -> None:
        if (self.hello, self.report, self.gone).count(None) != 2:  # noqa: PLR2004
            raise ValueError("one of hello, report and gone must be set")


JobOfToken = tuple[JobName, str]
"""The name and uid of a job: the relays of an earlier job of the name must not use up the number that it may have."""


@dataclass(frozen=True, slots=True)
class _OpenRelay:
    principal: ProcessPrincipal
    relay: RelayStream


@dataclass(frozen=True, slots=True)
class RelayEndpoints:
    """`/v1/relays/…`; `processes` handles the messages."""

    processes: ProcessEndpoints
    _relays: dict[JobOfToken, dict[str, _OpenRelay]] = field(default_factory=dict)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/relays/stream", self.stream), web.post("/v1/relays/messages", self.messages)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Sends the lines of the processes that join, until either side ends."""
        principal = await require_principal(ProcessPrincipal, request, self.processes.authenticate)
        hello = await body(request, RelayHello, MAX_MESSAGE_BYTES)
        job = principal.job, principal.uid
        relays = self._relays.get(job, {})
        if hello.relay in relays or len(relays) >= MAX_STREAMS:
            raise TooManyError(f"{principal.job} has this stream already, or the maximum number of streams")
        lines = LineResponse(request, self.processes.refusals)
        opened = self._relays.setdefault(job, {})[hello.relay] = _OpenRelay(principal, RelayStream(lines))
        try:
            await lines.prepare()
            return await lines.serve()
        finally:
            del self._relays[job][hello.relay]
            if not self._relays[job]:
                del self._relays[job]
            for stream in list(opened.relay.streams.values()):
                self._leave(opened, stream.worker.process)

    async def messages(self, request: web.Request) -> web.Response:
        """Answers each message: `{}` if it was accepted, otherwise its refusal."""
        principal = await require_principal(ProcessPrincipal, request, self.processes.authenticate)
        batch = await body(request, RelayBatch, _MAX_BATCH_BYTES)
        opened = self._relays.get((principal.job, principal.uid), {}).get(batch.relay)
        if opened is None or opened.principal != principal:
            raise UnknownRelayError("the relay has no stream here")
        # Tasks start in this order, and a process that joins or leaves does so before its task first waits.
        answers = await asyncio.gather(*(self._answer(opened, message) for message in batch.messages))
        return web.json_response({"answers": answers})

    async def _answer(self, opened: _OpenRelay, raw: msgspec.Raw) -> Mapping[str, Any]:
        """Handles one message as if its process had sent it; returns its answer."""
        if len(raw) > MAX_MESSAGE_BYTES:
            return refused(self.processes.refusals, OversizedError(f"more than {MAX_MESSAGE_BYTES} bytes"))
        try:
            message = decode(raw, RelayedMessage)
            if message.hello is not None:
                worker = self.processes.admit(opened.principal, message.hello)
                stream = opened.relay.streams[worker.process] = RelayedStream(opened.relay, worker)
                self.processes.attach(worker, message.hello, stream)
            if message.report is not None:
                await self.processes.accept(opened.principal, message.report)
            if message.gone is not None:
                self._leave(opened, message.gone)
        except Exception as error:  # noqa: BLE001 - it is answered to the process whose message it was, and counted
            return refused(self.processes.refusals, error)
        return {}

    def _leave(self, opened: _OpenRelay, process: str) -> None:
        stream = opened.relay.streams.pop(process, None)
        if stream is not None:
            self.processes.processes.detach(stream.worker, stream)
