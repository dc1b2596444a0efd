"""What the HTTP endpoints share: who calls, what was sent, and how a refusal looks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web

from supervisor.decide.registration import (
    ForeignJobError,
    NameIsLiveError,
    OlderRevisionError,
    RunIsOverError,
    UnknownJobError,
)
from supervisor.identity.tokens import BadTokenError, Principal
from supervisor.store.interface import StoreUnavailableError

T = TypeVar("T")

Bearer = Callable[[str | None], Principal]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = structlog.get_logger()


class MalformedError(Exception):
    """The message is wrong and will stay wrong."""


class ForeignTokenError(Exception):
    """The token is good, but for something else."""


class OversizedError(Exception):
    """The message is larger than anything honest."""


_REFUSALS: dict[type[Exception], tuple[int, str]] = {
    MalformedError: (400, "malformed"),
    BadTokenError: (401, "bad_token"),
    ForeignTokenError: (403, "foreign_token"),
    ForeignJobError: (403, "foreign_token"),
    UnknownJobError: (404, "unknown_job"),
    NameIsLiveError: (409, "name_is_live"),
    RunIsOverError: (409, "run_is_over"),
    OlderRevisionError: (409, "older_revision"),
    OversizedError: (413, "oversized"),
    StoreUnavailableError: (503, "not_serving"),
}


@web.middleware
async def refusals(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answers our own exceptions as the wire's refusals."""
    try:
        return await handler(request)
    except tuple(_REFUSALS) as error:
        status, code = next(answer for kind, answer in _REFUSALS.items() if isinstance(error, kind))
        _log.warning("request.refused", path=request.path, code=code, why=str(error))
        body = msgspec.json.encode({"error": code, "message": str(error)})
        return web.Response(status=status, body=body, content_type="application/json")


def bearer_as(kind: type[T], request: web.Request, bearer: Bearer) -> T:
    """The caller, who must be of that kind.

    Raises:
        BadTokenError: Nobody known.
        ForeignTokenError: Somebody else.
    """
    principal = bearer(request.headers.get("Authorization"))
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
    raise OversizedError(f"more than {limit} bytes")


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(str(error)) from error


def done() -> web.Response:
    """What was sent is durable."""
    return web.json_response({})
