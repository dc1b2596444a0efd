"""Helpers of the HTTP endpoints: authentication, decoding of bodies, and refusals."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from supervisor.identity.tokens import Principal
from supervisor.ingest.errors import ForeignTokenError, MalformedError, OversizedError, code_of
from supervisor.refusals import Code, Refusals, Wire, readable

T = TypeVar("T")

Authenticate = Callable[[str | None], Awaitable[Principal]]
"""Returns the principal that sent an Authorization header."""

_STATUS = {
    Code.MALFORMED: 400,
    Code.BAD_TOKEN: 401,
    Code.FOREIGN_TOKEN: 403,
    Code.UNKNOWN_JOB: 404,
    Code.UNKNOWN_NODE: 404,
    Code.UNKNOWN_RELAY: 404,
    Code.NAME_IS_LIVE: 409,
    Code.RUN_IS_OVER: 409,
    Code.JOB_IS_OVER: 409,
    Code.OLDER_REVISION: 409,
    Code.OVERSIZED: 413,
    Code.TOO_MANY: 429,
    Code.NOT_SERVING: 503,
}


def refusing(refusals: Refusals, wire: Wire = Wire.HTTP) -> Middleware:
    """A middleware that answers and counts refusals. A request whose connection fails is cancelled: it is no fault."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:  # From the router: unknown path or method.
            return _refusal(refusals, wire, error.status, Code.UNKNOWN_CALL, error.reason)
        except (ConnectionError, ssl.SSLError) as error:
            if request.transport is not None and not request.transport.is_closing():
                raise
            # aiohttp does so itself only once the connection is lost, and never where handlers are not to be cancelled.
            raise asyncio.CancelledError from error
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


def refused(refusals: Refusals, error: Exception) -> Mapping[str, Any]:
    """Counts the refusal of one of several messages, and returns its answer: a bug of ours is one of that message."""
    code = code_of(error)
    if code is None:
        refusals.add(Wire.HTTP, Code.INTERNAL, repr(error), error)
        return {"status": 500, "error": Code.INTERNAL, "message": "an internal error of the supervisor"}
    refusals.add(Wire.HTTP, code, str(error))
    return {"status": _STATUS[code], "error": code, "message": readable(str(error))}


def protocol_log(refusals: Refusals, wire: Wire = Wire.HTTP) -> logging.Logger:
    """A logger for aiohttp that counts refusals: aiohttp reports requests that reach no handler only by its log."""
    logger = logging.Logger("http", logging.DEBUG)  # noqa: LOG001 - unregistered, so that it is freed with the server
    logger.addHandler(_ProtocolLog(refusals, wire))
    return logger


class _ProtocolLog(logging.Handler):
    """Counts requests that are not HTTP, and exceptions that are not refusals."""

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
    """Authenticates a request, whose principal must be of a kind.

    Raises:
        BadTokenError: The token is missing or invalid.
        ForeignTokenError: The principal is of another kind.
        ForeignPodError: The pod is neither an agent's nor a job's.
        AuthenticationUnavailableError: The token cannot be checked at present.
    """
    principal = await authenticate(request.headers.get("Authorization"))
    if not isinstance(principal, kind):
        name = kind.__name__.removesuffix("Principal").lower()
        raise ForeignTokenError(f"this needs the token of {'an' if name[0] in 'aeio' else 'a'} {name}")
    return principal


async def body(request: web.Request, kind: type[T], limit: int) -> T:
    """Decodes the body as JSON of a type.

    Raises:
        OversizedError: The body has more than `limit` bytes.
        MalformedError: The body is not JSON of that type.
    """
    try:
        # Reading one byte more than allowed detects a body that is too large without reading all of it.
        await request.content.readexactly(limit + 1)
    except asyncio.IncompleteReadError as error:  # All of it was read.
        return decode(error.partial, kind)
    except web.RequestPayloadError as error:
        raise MalformedError("the framing of the body is not valid HTTP") from error
    raise OversizedError(f"more than {limit} bytes")


def decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decodes JSON of a type.

    Raises:
        MalformedError: The data is not JSON of that type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(str(error)) from error


def printable(field: str, text: str) -> None:
    """Checks a text that people will see: control characters could command a terminal or forge log lines.

    Raises:
        ValueError: The text has control characters, or other invisible ones.
    """
    if not text.isprintable():
        raise ValueError(f"{field} must be printable")


def done() -> web.Response:
    """The answer to a request whose content is stored."""
    return web.json_response({})
