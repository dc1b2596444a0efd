"""Faults of metadata services, which the server's connections really show."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from enum import StrEnum

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DRIP_SECONDS = 0.2
CLOCK_SECONDS = 3600.0
RETRY_AFTER_SECONDS = 1
CHUNK = b" " * 65536
# A client that follows the redirect finds nothing there, as if nothing was announced.
NOWHERE = "/nowhere"
# A time in some broken answers: an agent that believed it would announce a reclaim that nobody planned.
TIME = "2026-01-05T18:02:00Z"


class MetadataFault(StrEnum):
    """A fault of the metadata service. A correct agent still works with the last three."""

    BROKEN = "broken"
    FORBIDDEN = "forbidden"
    THROTTLED = "throttled"
    REDIRECT = "redirect"
    GARBAGE = "garbage"
    ENDLESS = "endless"
    DRIP = "drip"
    BLACK_HOLE = "black-hole"
    RESET = "reset"
    CUT_OFF = "cut-off"
    REFUSED = "refused"
    NO_TOKENS = "no-tokens"
    TOKENS_EXPIRE = "tokens-expire"
    CLOCK_AHEAD = "clock-ahead"
    CLOCK_BEHIND = "clock-behind"

    @property
    def hides_metadata(self) -> bool:
        """Whether an agent that uses tokens gets no data during this fault."""
        return self not in {self.TOKENS_EXPIRE, self.CLOCK_AHEAD, self.CLOCK_BEHIND}


@dataclass(frozen=True, slots=True)
class FaultPeriod:
    """A fault and its duration in seconds."""

    fault: MetadataFault
    seconds: float


def fault_periods(seed: int, rounds: int, longest: float) -> tuple[FaultPeriod, ...]:
    """Return rounds of all faults, each in a random order of the seed, none longer than `longest` seconds."""
    chance = random.Random(seed)  # noqa: S311  # Replays, keeps no secret.
    orders = [chance.sample(list(MetadataFault), len(MetadataFault)) for _ in range(rounds)]
    return tuple(FaultPeriod(fault, chance.uniform(longest / 4, longest)) for order in orders for fault in order)


async def answer(fault: MetadataFault, request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a request while the fault lasts. Expired tokens are handled by the server."""
    if request.path == NOWHERE:
        return web.Response(status=404)
    if fault in _RESPONSES:
        return _RESPONSES[fault]()
    match fault:
        case MetadataFault.NO_TOKENS if request.method == "PUT":
            return web.Response(status=500)
        case MetadataFault.CLOCK_AHEAD | MetadataFault.CLOCK_BEHIND:
            return await _misdated(fault, request, handler)
        case MetadataFault.NO_TOKENS | MetadataFault.TOKENS_EXPIRE:
            return await handler(request)
        case _:
            return await _break_off(fault, request)


_RESPONSES: Mapping[MetadataFault, Callable[[], web.Response]] = {
    MetadataFault.BROKEN: lambda: web.Response(status=500, text=TIME),
    MetadataFault.FORBIDDEN: lambda: web.Response(status=403),
    MetadataFault.THROTTLED: lambda: web.Response(status=429, headers={"Retry-After": str(RETRY_AFTER_SECONDS)}),
    MetadataFault.REDIRECT: lambda: web.Response(status=302, headers={"Location": NOWHERE}),
    MetadataFault.GARBAGE: lambda: web.Response(body=b"\x00\xff<html>" + TIME.encode()),
}


async def _misdated(fault: MetadataFault, request: web.Request, handler: Handler) -> web.StreamResponse:
    shift = CLOCK_SECONDS if fault is MetadataFault.CLOCK_AHEAD else -CLOCK_SECONDS
    date = formatdate(time.time() + shift, usegmt=True)
    try:
        response = await handler(request)
    except web.HTTPException as refusal:
        refusal.headers["Date"] = date
        raise
    response.headers["Date"] = date
    return response


async def _break_off(fault: MetadataFault, request: web.Request) -> web.StreamResponse:
    """Send an answer that never ends or ends too early."""
    response = web.StreamResponse()
    match fault:
        case MetadataFault.BLACK_HOLE:
            await asyncio.Event().wait()
        case MetadataFault.DRIP:
            await _write_forever(response, request, b"2", DRIP_SECONDS)
        case MetadataFault.ENDLESS:
            await _write_forever(response, request, CHUNK, 0.0)
        case MetadataFault.CUT_OFF:
            await _write_half(response, request)
            _transport(request).close()
        case MetadataFault.RESET:
            await _write_half(response, request)
            _transport(request).abort()
        case _:
            _transport(request).abort()
    return response


async def _write_half(response: web.StreamResponse, request: web.Request) -> None:
    response.content_length = len(TIME)
    await response.prepare(request)
    await response.write(TIME[: len(TIME) // 2].encode())


async def _write_forever(response: web.StreamResponse, request: web.Request, text: bytes, pause: float) -> None:
    """Write until the client disconnects, which cancels this or fails a write."""
    with suppress(ConnectionError):
        await response.prepare(request)
        while True:
            await response.write(text)
            await asyncio.sleep(pause)


def _transport(request: web.Request) -> asyncio.Transport:
    transport = request.transport
    if not isinstance(transport, asyncio.Transport):
        raise ConnectionResetError("the client has gone")
    return transport
