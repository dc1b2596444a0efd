"""Serves relays over HTTP: one stream for all training processes of a pod or machine, and their messages in batches.

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
from supervisor.fanout.lines import LineResponse
from supervisor.fanout.processes import RelayedStream, RelayStream
from supervisor.identity.tokens import ProcessPrincipal
from supervisor.ingest.errors import OversizedError, TooManyError, UnknownRelayError
from supervisor.ingest.http import body, decode, printable, refused, require_principal
from supervisor.ingest.processes import (
    MAX_MESSAGE_BYTES,
    PostedProcessHello,
    PostedProcessReport,
    ProcessEndpoints,
    Text,
)

_MAX_BYTES = 1024 * 1024
_MAX_MESSAGES = 64


class RelayHello(msgspec.Struct, frozen=True, kw_only=True):
    """Opens the stream of a relay, and is its only message there; `relay` is a random id."""

    relay: Text

    def __post_init__(self) -> None:
        printable("relay", self.relay)


class RelayBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Carries messages of the relay's processes. Each is decoded for itself: a malformed one must not harm others."""

    relay: Text
    messages: Annotated[list[msgspec.Raw], Meta(max_length=_MAX_MESSAGES)]


class RelayedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Carries one of three: a process joins the stream, reports, or has left the stream."""

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
        if hello.relay in relays or len(relays) >= fanout.MAX_STREAMS:
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
        batch = await body(request, RelayBatch, _MAX_BYTES)
        opened = self._relays.get((principal.job, principal.uid), {}).get(batch.relay)
        if opened is None or opened.principal != principal:
            raise UnknownRelayError("the relay has no stream here")
        # Tasks start in this order, and a process that joins or leaves does so before its task first waits.
        answers = await asyncio.gather(*(self._answer(opened, message) for message in batch.messages))
        return web.json_response({"answers": answers})

    async def _answer(self, opened: _OpenRelay, raw: msgspec.Raw) -> Mapping[str, Any]:
        try:
            await self._accept(opened, raw)
        except Exception as error:  # noqa: BLE001 - it is answered to the process whose message it was, and counted
            return refused(self.processes.refusals, error)
        return {}

    async def _accept(self, opened: _OpenRelay, raw: msgspec.Raw) -> None:
        if len(raw) > MAX_MESSAGE_BYTES:
            raise OversizedError(f"more than {MAX_MESSAGE_BYTES} bytes")
        message = decode(raw, RelayedMessage)
        if message.hello is not None:
            worker = self.processes.admit(opened.principal, message.hello)
            stream = opened.relay.streams[worker.process] = RelayedStream(opened.relay, worker)
            self.processes.attach(worker, message.hello, stream)
        if message.report is not None:
            await self.processes.accept(opened.principal, message.report)
        if message.gone is not None:
            self._leave(opened, message.gone)

    def _leave(self, opened: _OpenRelay, process: str) -> None:
        stream = opened.relay.streams.pop(process, None)
        if stream is not None:
            self.processes.processes.detach(stream.worker, stream)
