"""Serves states over HTTP: room, and parts to put, get and delete.

Whoever sends a part shows the token of a pod. Whoever knows the name of a state may read and delete it.
"""

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import IO

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from node_agent.keeper.files import DraftFile
from node_agent.keeper.keeper import StateKeeper
from node_agent.keeper.ledger import MAX_PART, Part, StateKey, Tenant
from node_agent.keeper.refusals import STATUS, RefusalCode, RequestRefusedError
from node_agent.keeper.tenants import Tenants
from node_agent.keeper.transfers import TransferBounds, Transfers
from servicekit.address import Address
from servicekit.bounds import whole
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.http_server import Drop, GuardedSite, mark_streaming, timed
from servicekit.open_connections import ConnectionBounds, OpenConnections
from servicekit.rate import TokenBucket, TokenBuckets

_STATE = re.compile(r"[0-9a-f]{64}")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_MAX_LENGTH = 2**50

_REQUEST_SECONDS = 10.0
"""For a head, and for an answer that is no stream."""
_STALL_SECONDS = 10.0
_STALL_BYTES = 1024 * 1024
"""An upload or a download that moves less than this in that time is ended."""
_STEP = 4 * _STALL_BYTES

_BUFFER = 128 * 1024
"""Bytes that are read ahead of the handler; twice as many are read before the peer has to wait."""
_CONNECTIONS = ConnectionBounds(all=512, of_peer=128)
"""With their buffers, 128 MiB at most. A node has some 16 processes that send or read parts, at most 128."""
_TRANSFERS = TransferBounds(of_tenant=_CONNECTIONS.all // 2, with_peer=_CONNECTIONS.of_peer // 2)
_MAX_HEADERS = 16
"""Of up to 8 KiB each, because of tokens. Clients send ten. All connections with heads that never end take 120 MiB."""

_PART_RATE, _PART_BURST = 100.0, 4096.0
"""Parts that one tenant sends each second, and at once: each is a line of the log."""
_LOGGED_RATE, _LOGGED_BURST = 1.0, 20.0
"""Refusals that are logged each second, and at once. All are counted."""

_STOP_SECONDS = 0.5

_TENANT = "tenant"
"""The key of a request's tenant, for the log."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_log = structlog.get_logger()

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def ignore_refusal(_code: RefusalCode) -> None:
    """Does nothing, because nobody counts."""


class _Room(msgspec.Struct, frozen=True):
    bytes: int
    seconds: float


class _RefusalBody(msgspec.Struct, frozen=True, omit_defaults=True):
    code: RefusalCode
    message: str
    bytes: int | None = None


@dataclass(eq=False, slots=True, kw_only=True)
class KeeperServer:
    """Serves a keeper's parts.

    Attributes:
        address: Port 0 picks a free port.
        on_refused: Called for each request or connection that is refused.
        stall_seconds: The time in which an upload or a download has to move a mebibyte.
    """

    keeper: StateKeeper
    tenants: Tenants
    address: Address
    clock: Clock
    bulkhead: Bulkhead
    on_refused: Callable[[RefusalCode], None] = ignore_refusal
    stall_seconds: float = _STALL_SECONDS
    _rates: TokenBuckets = field(init=False, default_factory=lambda: TokenBuckets(_PART_RATE, _PART_BURST))
    _transfers: Transfers = field(init=False, default_factory=lambda: Transfers(_TRANSFERS))
    _logged: TokenBucket = field(init=False, default_factory=lambda: TokenBucket(_LOGGED_RATE, _LOGGED_BURST))

    async def run(self) -> None:
        """Root task: serves until cancelled.

        Raises:
            OSError: The address is not available.
        """
        async with self.serving() as address:
            _log.info("keeper.listening", address=str(address))
            await asyncio.Event().wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Address]:
        """Serves while the context lasts; yields the address.

        Raises:
            OSError: The address is not available.
        """
        app = web.Application(middlewares=[timed, self._refusing])
        app.router.add_get("/v1/room", self._room, allow_head=False)
        app.router.add_put("/v1/states/{state}/{part}", self._put, expect_handler=_expect_later)
        app.router.add_get("/v1/states/{state}/{part}", self._get, allow_head=False)
        app.router.add_delete("/v1/states/{state}", self._delete)
        runner = web.AppRunner(
            app,
            # A path has the name of a state, which nobody else should see.
            access_log=None,
            logger=self._protocol_log(),
            auto_decompress=False,
            handler_cancellation=True,
            max_headers=_MAX_HEADERS,
            read_bufsize=_BUFFER,
            shutdown_timeout=_STOP_SECONDS,
        )
        await runner.setup()
        try:
            site = GuardedSite(
                runner,
                self.address,
                None,
                timeout_seconds=_REQUEST_SECONDS,
                on_drop=self._dropped,
                connections=OpenConnections(_CONNECTIONS, self._crowded),
            )
            await site.start()
            yield Address(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()

    async def _room(self, request: web.Request) -> web.Response:
        needed = _needed(request)
        tenant = await self._tenant(request)
        room = _Room(self.keeper.room(tenant), self.keeper.max_seconds)
        if needed > room.bytes:
            raise RequestRefusedError(RefusalCode.NO_ROOM, f"{needed} bytes are needed", room.bytes)
        return web.Response(body=msgspec.json.encode(room), content_type="application/json")

    async def _put(self, request: web.Request) -> web.Response:
        state, number = _state(request), _part(request)
        length, seconds = _length(request), _seconds(request)
        tenant = await self._tenant(request)
        if self._rates.take(tenant, self.clock.monotonic()):
            raise RequestRefusedError(RefusalCode.TOO_MANY, "too many parts are sent")
        until = self.clock.now() + min(seconds, self.keeper.max_seconds)
        part = Part(tenant=tenant, state=state, number=number, length=length, until=until)
        with self._transfers.one(tenant, request.remote or ""), self.keeper.receiving(part) as draft:
            mark_streaming(request)
            if hdrs.EXPECT in request.headers and request.transport is not None:
                request.transport.write(_CONTINUE)
            await self._receive(request, part, draft)
        return web.Response(status=201)

    async def _receive(self, request: web.Request, part: Part, draft: DraftFile) -> None:
        loop, marked = asyncio.get_running_loop(), 0
        try:
            async with asyncio.timeout(self.stall_seconds) as stall:
                while draft.written < part.length:
                    data, _ = await request.content.readchunk()
                    if not data:
                        raise RequestRefusedError(RefusalCode.MALFORMED, "the body is shorter than its Content-Length")
                    draft.write(data)
                    if self.clock.now() >= part.until:
                        raise RequestRefusedError(RefusalCode.TOO_SLOW, "its time has ended")
                    if draft.written - marked >= _STALL_BYTES:
                        marked = draft.written
                        stall.reschedule(loop.time() + self.stall_seconds)
        except TimeoutError as error:
            raise RequestRefusedError(RefusalCode.TOO_SLOW, "too little of the body arrives") from error
        except web.RequestPayloadError as error:
            raise RequestRefusedError(RefusalCode.MALFORMED, "the framing of the body is not valid HTTP") from error

    async def _get(self, request: web.Request) -> web.StreamResponse:
        part = self.keeper.find(_state(request), _part(request))
        if part is None:
            raise RequestRefusedError(RefusalCode.UNKNOWN_PART, "there is no such part")
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/octet-stream"})
        response.content_length = part.length
        with (
            self._transfers.one(part.tenant, request.remote or ""),
            os.fdopen(self.keeper.files.read(part), "rb") as file,
        ):
            mark_streaming(request)
            await response.prepare(request)
            if request.transport is None:
                raise ConnectionResetError
            try:
                await self._send(request.transport, file, part.length)
            except BaseException:
                # The rest of the answer is missing, so nothing else may follow on this connection.
                request.transport.abort()
                raise
        await response.write_eof()
        self.keeper.ledger.note_read(part)
        return response

    async def _send(self, transport: asyncio.Transport, file: IO[bytes], length: int) -> None:
        loop, sent = asyncio.get_running_loop(), 0
        while sent < length:
            try:
                async with asyncio.timeout(self.stall_seconds * _STEP / _STALL_BYTES):
                    count = await loop.sendfile(transport, file, sent, min(_STEP, length - sent))
            except TimeoutError as error:
                self._refused(RefusalCode.TOO_SLOW, "too little of the answer is read")
                raise ConnectionAbortedError from error
            if not count:
                raise ConnectionAbortedError  # The part has been removed meanwhile.
            sent += count

    async def _delete(self, request: web.Request) -> web.Response:
        self.keeper.delete(_state(request))
        return web.Response(status=204)

    async def _tenant(self, request: web.Request) -> Tenant:
        given = request.headers.getall(hdrs.AUTHORIZATION, [])
        tenant = await self.tenants.tenant(given[0] if len(given) == 1 else None, request.remote or "")
        request[_TENANT] = tenant
        return tenant

    @web.middleware
    async def _refusing(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answers refusals and faults of our own code as JSON, and counts them."""
        free = None
        try:
            return await handler(request)
        except RequestRefusedError as error:
            status, code, why, free = STATUS[error.code], error.code, str(error), error.free
        except web.HTTPException as error:  # From the router: unknown path or method.
            status, code, why = error.status, RefusalCode.UNKNOWN_CALL, error.reason
        except ConnectionError as error:
            raise asyncio.CancelledError from error
        except Exception as error:  # noqa: BLE001 - one request's fault
            self.bulkhead.note("request", error)
            status, code, why = 500, RefusalCode.INTERNAL, "an internal error of the keeper"
        self._refused(code, why, request.get(_TENANT, ""), request.content_length, request.remote or "")
        body = msgspec.json.encode(_RefusalBody(code, why, free))
        response = web.Response(status=status, body=body, content_type="application/json")
        if not request.content.is_eof():
            response.force_close()  # Who waits for 100 Continue sends no body, or the next request in its place.
        return response

    def _refused(
        self, code: RefusalCode, why: str, tenant: str = "", length: int | None = None, peer: str = ""
    ) -> None:
        self.on_refused(code)
        if not self._logged.take(self.clock.monotonic()):
            _log.warning("keeper.refused", code=code, why=why, tenant=tenant, bytes=length, peer=peer)

    def _crowded(self, peer: str) -> None:
        self._refused(RefusalCode.CROWDED, "too many connections", peer=peer)

    def _dropped(self, why: Drop) -> None:
        if why is not Drop.IDLE:
            self._refused(RefusalCode.TOO_SLOW if why is not Drop.TOO_MANY else RefusalCode.BAD_REQUEST, why)

    def _protocol_log(self) -> logging.Logger:
        """A logger for aiohttp that counts bytes that are not HTTP. It lets no record through, which may quote them."""

        def count(record: logging.LogRecord) -> bool:
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, HttpProcessingError):
                self._refused(RefusalCode.BAD_REQUEST, "the request is not HTTP")
            elif isinstance(error, Exception):
                self.bulkhead.note("request", error)
            return False

        logger = logging.Logger("keeper", logging.DEBUG)  # noqa: LOG001 - unregistered, so that it ends with the server
        logger.addFilter(count)
        return logger


async def _expect_later(request: web.Request) -> None:
    """Lets the client wait for 100 Continue until there is room for the body."""
    if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        raise web.HTTPExpectationFailed


def _state(request: web.Request) -> StateKey:
    name = request.match_info["state"]
    if _STATE.fullmatch(name) is None:
        raise RequestRefusedError(RefusalCode.MALFORMED, "a state is 64 lower-case hexadecimal digits")
    return StateKey(hashlib.sha256(name.encode()).hexdigest())


def _part(request: web.Request) -> int:
    number = whole(request.match_info["part"], MAX_PART)
    if number is None:
        raise RequestRefusedError(RefusalCode.MALFORMED, f"a part is a number from 0 to {MAX_PART}")
    return number


def _length(request: web.Request) -> int:
    if hdrs.CONTENT_LENGTH not in request.headers or hdrs.TRANSFER_ENCODING in request.headers:
        raise RequestRefusedError(RefusalCode.LENGTH_REQUIRED, "a part needs a Content-Length and no Transfer-Encoding")
    length = whole(request.headers[hdrs.CONTENT_LENGTH], _MAX_LENGTH)
    if length is None:
        raise RequestRefusedError(RefusalCode.MALFORMED, f"Content-Length is a number from 0 to {_MAX_LENGTH}")
    return length


def _needed(request: web.Request) -> int:
    given = request.headers.getall("Needed-Bytes", ["0"])
    needed = whole(given[0], _MAX_LENGTH) if len(given) == 1 else None
    if needed is None:
        raise RequestRefusedError(
            RefusalCode.MALFORMED, f"Needed-Bytes is a number from 0 to {_MAX_LENGTH}, and is given once"
        )
    return needed


def _seconds(request: web.Request) -> float:
    given = request.headers.getall("Keep-Seconds", [])
    if len(given) != 1 or _SECONDS.fullmatch(given[0]) is None or float(given[0]) <= 0:
        raise RequestRefusedError(
            RefusalCode.MALFORMED, "Keep-Seconds is a number of seconds above 0, and is given once"
        )
    return float(given[0])
