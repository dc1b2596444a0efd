"""The endpoints for relays: one stream for all training processes of a pod or machine, and their messages in batches.

Each message is that of a process's own calls, is accepted or refused for itself, and is answered in the order sent.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from supervisor.domain.ids import JobName
from supervisor.fanout import processes as fanout
from supervisor.fanout.lines import LineStream
from supervisor.fanout.relays import Relay
from supervisor.identity.tokens import Process
from supervisor.ingest.errors import OversizedError, TooManyError, UnknownRelayError
from supervisor.ingest.http import body, decode, printable, refused, require_principal
from supervisor.ingest.processes import MAX_MESSAGE_BYTES, Hello, ProcessEndpoints, Report, Text

_MAX_BYTES = 1024 * 1024
_MAX_MESSAGES = 64


class RelayHello(msgspec.Struct, frozen=True, kw_only=True):
    """The first and only message of a relay's stream; `relay` is a random id."""

    relay: Text

    def __post_init__(self) -> None:
        printable("relay", self.relay)


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of the relay's processes. Each is decoded for itself: a malformed one must not harm the others."""

    relay: Text
    messages: Annotated[list[msgspec.Raw], Meta(max_length=_MAX_MESSAGES)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One of three: a process joins the stream, reports, or has left the stream."""

    hello: Hello | None = None
    report: Report | None = None
    gone: Text | None = None

    def __post_init__(self) -> None:
        if (self.hello, self.report, self.gone).count(None) != 2:  # noqa: PLR2004
            raise ValueError("one of hello, report and gone must be set")


_Job = tuple[JobName, str]
"""The name and uid of a job: the relays of an earlier job of the name must not use up the number that it may have."""


@dataclass(frozen=True, slots=True)
class _Open:
    principal: Process
    relay: Relay


@dataclass(frozen=True, slots=True)
class RelayEndpoints:
    """`/v1/relays/…`; what the messages of processes mean is said by `processes`."""

    processes: ProcessEndpoints
    _relays: dict[_Job, dict[str, _Open]] = field(default_factory=dict)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/relays/stream", self.stream), web.post("/v1/relays/messages", self.messages)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Sends the lines of the processes that join, until either side ends."""
        principal = await require_principal(Process, request, self.processes.authenticate)
        hello = await body(request, RelayHello, MAX_MESSAGE_BYTES)
        relays = self._relays.get(_job(principal), {})
        if hello.relay in relays or len(relays) >= fanout.MAX_STREAMS:
            raise TooManyError(f"{principal.job} has this stream already, or the maximum number of streams")
        lines = LineStream(request, self.processes.refusals)
        opened = _Open(principal, Relay(lines))
        self._relays.setdefault(_job(principal), {})[hello.relay] = opened
        try:
            await lines.prepare()
            return await lines.serve()
        finally:
            self._forget(hello.relay, opened)

    async def messages(self, request: web.Request) -> web.Response:
        """Answers each message: `{}` if it was accepted, otherwise its refusal."""
        principal = await require_principal(Process, request, self.processes.authenticate)
        batch = await body(request, Batch, _MAX_BYTES)
        opened = self._relays.get(_job(principal), {}).get(batch.relay)
        if opened is None or opened.principal != principal:
            raise UnknownRelayError("the relay has no stream here")
        # Tasks start in this order, and a process that joins or leaves does so before its task first waits.
        answers = await asyncio.gather(*(self._answer(opened, message) for message in batch.messages))
        return web.json_response({"answers": answers})

    async def _answer(self, opened: _Open, raw: msgspec.Raw) -> Mapping[str, Any]:
        try:
            await self._accept(opened, _decoded(raw))
        except Exception as error:  # noqa: BLE001 - it is answered to the process whose message it was, and counted
            return refused(self.processes.refusals, error)
        return {}

    async def _accept(self, opened: _Open, message: Message) -> None:
        if message.hello is not None:
            worker = self.processes.admit(opened.principal, message.hello)
            self.processes.attach(worker, message.hello, opened.relay.join(worker))
        if message.report is not None:
            await self.processes.accept(opened.principal, message.report)
        if message.gone is not None:
            self._leave(opened, message.gone)

    def _leave(self, opened: _Open, process: str) -> None:
        stream = opened.relay.leave(process)
        if stream is not None:
            self.processes.processes.detach(stream.worker, stream)

    def _forget(self, name: str, opened: _Open) -> None:
        job = _job(opened.principal)
        relays = self._relays[job]
        del relays[name]
        if not relays:
            del self._relays[job]
        for stream in list(opened.relay.streams):
            self._leave(opened, stream.worker.process)


def _job(principal: Process) -> _Job:
    return principal.job, principal.uid


def _decoded(raw: msgspec.Raw) -> Message:
    if len(raw) > MAX_MESSAGE_BYTES:
        raise OversizedError(f"more than {MAX_MESSAGE_BYTES} bytes")
    return decode(raw, Message)
