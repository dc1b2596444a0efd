"""Helpers of the HTTP endpoints: authentication, decoding of bodies, and refusals."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from supervisor.identity.tokens import Principal
from supervisor.ingest.errors import CODES, ForeignTokenError, MalformedError, OversizedError
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
    """A middleware that answers and counts refusals.

    A request whose connection fails is cancelled, which is no fault.
    """

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:  # From the router: unknown path or method.
            status, code, why = error.status, Code.UNKNOWN_CALL, error.reason
        except (ConnectionError, ssl.SSLError) as error:
            if request.transport is not None and not request.transport.is_closing():
                raise
            # aiohttp does so itself only once the connection is lost, and never where handlers are not to be cancelled.
            raise asyncio.CancelledError from error
        except Exception as error:
            if type(error) not in CODES:
                raise
            code = CODES[type(error)]
            status, why = _STATUS[code], str(error)
        refusals.add(wire, code, why)
        body = msgspec.json.encode({"error": code, "message": readable(why)})
        return web.Response(status=status, body=body, content_type="application/json")

    return answer


def refused(refusals: Refusals, error: Exception) -> Mapping[str, Any]:
    """Counts the refusal of one of several messages and returns its answer. A bug of ours fails this message alone."""
    code = CODES.get(type(error))
    if code is None:
        refusals.add(Wire.HTTP, Code.INTERNAL, repr(error), error)
        return {"status": 500, "error": Code.INTERNAL, "message": "an internal error of the supervisor"}
    refusals.add(Wire.HTTP, code, str(error))
    return {"status": _STATUS[code], "error": code, "message": readable(str(error))}


def protocol_log(refusals: Refusals, wire: Wire = Wire.HTTP) -> logging.Logger:
    """A logger for aiohttp that counts refusals, because aiohttp only logs requests that reach no handler."""

    def count(record: logging.LogRecord) -> bool:
        """Counts a request that is not HTTP, or an exception that is not a refusal; lets no record through."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            refusals.add(wire, Code.BAD_REQUEST, error.message)
        elif isinstance(error, Exception):
            refusals.add(wire, Code.INTERNAL, repr(error), error)
        return False

    logger = logging.Logger("http", logging.DEBUG)  # noqa: LOG001 - unregistered, so that it is freed with the server
    logger.addFilter(count)
    return logger


async def require_principal(kind: type[T], request: web.Request, authenticate: Authenticate) -> T:
    """Authenticates a request. Its principal must be of the given class.

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


class PrintableBody(msgspec.Struct, frozen=True, kw_only=True):
    """A message with texts that people will see, in the fields that `PRINTABLE` names."""

    PRINTABLE: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Checks those fields: control characters could command a terminal or forge log lines.

        Raises:
            ValueError: A text has control characters, or other invisible ones.
        """
        for field in self.PRINTABLE:
            value: str | list[str] | None = getattr(self, field)
            texts = [value] if isinstance(value, str) else value or ()
            if not all(text.isprintable() for text in texts):
                raise ValueError(f"{field} must be printable")
