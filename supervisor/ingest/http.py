"""What the HTTP endpoints share: who calls, what was sent, and how a refusal looks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from supervisor.identity.tokens import Principal
from supervisor.ingest.errors import ForeignTokenError, MalformedError, OversizedError, code_of
from supervisor.refusals import Code, Refusals, Wire, readable

T = TypeVar("T")

Authenticate = Callable[[str | None], Awaitable[Principal]]
"""Who sent an Authorization header."""

_STATUS = {
    Code.MALFORMED: 400,
    Code.BAD_TOKEN: 401,
    Code.FOREIGN_TOKEN: 403,
    Code.UNKNOWN_JOB: 404,
    Code.UNKNOWN_NODE: 404,
    Code.NAME_IS_LIVE: 409,
    Code.RUN_IS_OVER: 409,
    Code.OLDER_REVISION: 409,
    Code.OVERSIZED: 413,
    Code.TOO_MANY: 429,
    Code.NOT_SERVING: 503,
}


def refusing(refusals: Refusals, wire: Wire = Wire.HTTP) -> Middleware:
    """Answers refusals as the wire has them, and counts them."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:  # The router's: no such path, or not with that method.
            return _refusal(refusals, wire, error.status, Code.UNKNOWN_CALL, error.reason)
        except Exception as error:
            code = code_of(error)
            if code is None:
                raise
            return _refusal(refusals, wire, _STATUS[code], code, str(error))

    return answer


def _refusal(refusals: Refusals, wire: Wire, status: int, code: Code, why: str) -> web.Response:
    refusals.add(wire, code, why)
    body = msgspec.json.encode({"error": code, "message": readable(why)})
    return web.Response(status=status, body=body, content_type="application/json")


def protocol_log(refusals: Refusals, wire: Wire = Wire.HTTP) -> logging.Logger:
    """For aiohttp, which has no other way of telling what it answers before any handler is asked."""
    logger = logging.Logger("http", logging.DEBUG)  # noqa: LOG001 - nobody else is to find it, so that it ends with us
    logger.addHandler(_ProtocolLog(refusals, wire))
    return logger


class _ProtocolLog(logging.Handler):
    """Bytes that are not HTTP are counted, and so is an exception that is no refusal."""

    def __init__(self, refusals: Refusals, wire: Wire) -> None:
        super().__init__()
        self._refusals = refusals
        self._wire = wire

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            self._refusals.add(self._wire, Code.BAD_REQUEST, error.message)
        elif isinstance(error, Exception):
            self._refusals.add(self._wire, Code.INTERNAL, repr(error), error)


async def require_principal(kind: type[T], request: web.Request, authenticate: Authenticate) -> T:
    """The caller, who must be of that kind.

    Raises:
        BadTokenError: Nobody known.
        ForeignTokenError: Somebody else.
        ForeignPodError: Somebody who has nothing to say here.
        CannotTellError: That cannot be said at present.
    """
    principal = await authenticate(request.headers.get("Authorization"))
    if not isinstance(principal, kind):
        raise ForeignTokenError(f"this is for a {kind.__name__.lower()} token")
    return principal


async def body(request: web.Request, kind: type[T], limit: int) -> T:
    """The body, as a value of that kind.

    Raises:
        OversizedError: It has more than `limit` bytes.
        MalformedError: It is no such value.
    """
    try:
        # One byte more than allowed tells "just fits" from "too large" without reading on.
        await request.content.readexactly(limit + 1)
    except asyncio.IncompleteReadError as error:  # All of it was read.
        return _decode(error.partial, kind)
    except web.RequestPayloadError as error:
        raise MalformedError("the body is not framed as HTTP has it") from error
    raise OversizedError(f"more than {limit} bytes")


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(str(error)) from error


def printable(field: str, text: str) -> None:
    """What is shown to people must not command their terminals, nor add lines to their logs.

    Raises:
        ValueError: The text has control characters, or others that are not seen.
    """
    if not text.isprintable():
        raise ValueError(f"{field} must be printable")


def done() -> web.Response:
    """What was sent is durable."""
    return web.json_response({})
