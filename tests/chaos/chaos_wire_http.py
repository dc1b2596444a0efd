"""Forwards the calls of launchers and training processes: posts one by one, streams line by line; see `chaos_wire`."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from random import Random
from typing import Self

import aiohttp
from aiohttp import web

from servicekit.address import Address
from tests.chaos.chaos_wire import FAULTY_CALLS, HOLD_SECONDS, Background, Lane, inject_into_stream, trust

_ORPHAN_SECONDS = 2.0
_FORWARDED = ("Authorization", "Heartbeat-Seconds")


class _Fate(Enum):
    """What happens to a call."""

    FORWARDED = auto()
    DELAYED = auto()
    LOST = auto()
    ANSWER_LOST = auto()
    REPEATED = auto()
    LATE = auto()
    """The caller is cut off at once, and what it sent arrives some time later."""


class _HttpStream:
    """One stream of lines."""

    def __init__(self, request: web.Request) -> None:
        self.up = Lane()  # Nothing follows the hello.
        self.down = Lane()
        self._request = request

    def cut(self) -> None:
        _abort(self._request)

    async def read(self, answer: aiohttp.ClientResponse) -> None:
        """Receives lines until the stream ends."""
        try:
            with suppress(aiohttp.ClientError):
                async for line in answer.content:
                    self.down.put(line)
        finally:
            self.down.put(None)

    async def write(self, response: web.StreamResponse) -> None:
        with suppress(ConnectionError):  # The client is gone.
            while (line := await self.down.take()) is not None:
                await response.write(line)


class CallWire:
    """A server without TLS in front of a supervisor with TLS.

    Attributes:
        address: Where it listens.
    """

    def __init__(self, target: Address, session: aiohttp.ClientSession) -> None:
        self._url = f"https://{target}"
        self._session = session
        self._streams: list[_HttpStream] = []
        self._refuses_until = 0.0
        self._random: Random | None = None
        self._background = Background()
        self.address = Address("127.0.0.1", 0)

    @classmethod
    @asynccontextmanager
    async def to(cls, target: Address, ca: Path) -> AsyncIterator[Self]:
        """A wire to the supervisor that serves HTTP there."""
        # Each call has a connection of its own, so that none is left over.
        connector = aiohttp.TCPConnector(limit=0, ssl=trust(str(ca)), force_close=True)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            middle = cls(target, session)
            application = web.Application()
            application.router.add_post("/{path:.*}", middle._handle)
            runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
                middle.address = Address("127.0.0.1", runner.addresses[0][1])
                yield middle
            finally:
                await middle._background.close()
                await runner.cleanup()

    def inject(self, random: Random) -> None:
        if self._streams:
            inject_into_stream(random.choice(self._streams), random, self._background)

    def begin(self, random: Random) -> None:
        self._random = random

    def heal(self) -> None:
        self._random = None
        self._refuses_until = 0.0
        for stream in self._streams:
            stream.down.heal()

    def refuse(self, seconds: float) -> None:
        self._refuses_until = time.monotonic() + seconds
        for stream in self._streams:
            stream.cut()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if time.monotonic() < self._refuses_until:
            _abort(request)
            raise web.HTTPServiceUnavailable
        body = await request.read()
        if request.path.endswith("/stream"):
            return await self._stream(request, body)
        return await self._post(request, body)

    def _fate(self, *fates: _Fate) -> _Fate:
        random = self._random
        return _Fate.FORWARDED if random is None or random.random() > FAULTY_CALLS else random.choice(fates)

    def _pause(self) -> float:
        return 0.0 if self._random is None else self._random.uniform(*HOLD_SECONDS)

    async def _post(self, request: web.Request, body: bytes) -> web.StreamResponse:
        fate = self._fate(*_Fate)
        if fate is _Fate.LATE:
            self._background.start(self._deliver(request, body, self._pause()))
        if fate in (_Fate.LATE, _Fate.LOST):
            _abort(request)
            raise web.HTTPServiceUnavailable
        if fate is _Fate.DELAYED:
            await asyncio.sleep(self._pause())
        if fate is _Fate.REPEATED:
            self._background.start(self._deliver(request, body, 0.0))
        answer = await self._forward(request, body)
        if fate is _Fate.ANSWER_LOST:
            _abort(request)
        return answer

    async def _deliver(self, request: web.Request, body: bytes, after: float) -> None:
        await asyncio.sleep(after)
        await self._forward(request, body)

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        try:
            async with self._open(request, body) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)
        except aiohttp.ClientError as error:
            _abort(request)
            raise web.HTTPBadGateway from error

    async def _stream(self, request: web.Request, body: bytes) -> web.StreamResponse:
        fate = self._fate(_Fate.DELAYED, _Fate.LOST, _Fate.LATE)
        if fate is _Fate.LATE:
            self._background.start(self._open_late(request, body))
        if fate in (_Fate.LATE, _Fate.LOST):
            _abort(request)
            raise web.HTTPServiceUnavailable
        await asyncio.sleep(self._pause() if fate is _Fate.DELAYED else 0.0)
        try:
            answer = await self._open(request, body)
        except aiohttp.ClientError as error:
            _abort(request)
            raise web.HTTPBadGateway from error
        return await self._carry(request, answer)

    async def _carry(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        stream = _HttpStream(request)
        self._streams.append(stream)
        reading = self._background.start(stream.read(answer))
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
        response.force_close()  # The simulated processes notice the end of a connection, not that of a stream on it.
        try:
            await response.prepare(request)
            await stream.write(response)
        finally:
            self._streams.remove(stream)
            self._leave(reading, answer)
        return response

    def _leave(self, reading: asyncio.Task[None], answer: aiohttp.ClientResponse) -> None:
        """Ends the supervisor's side, which sometimes learns of it late."""
        orphaned = self._random is not None and self._random.random() < FAULTY_CALLS

        def end() -> None:
            reading.cancel()
            answer.close()

        self._background.later(_ORPHAN_SECONDS if orphaned else 0.0, end)

    async def _open_late(self, request: web.Request, body: bytes) -> None:
        """Lets a hello arrive after the caller has opened another stream."""
        await asyncio.sleep(self._pause())
        with suppress(aiohttp.ClientError):
            async with self._open(request, body):
                await asyncio.sleep(_ORPHAN_SECONDS)

    def _open(self, request: web.Request, body: bytes) -> "aiohttp.client._RequestContextManager":
        headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
        return self._session.post(self._url + request.path, data=body, headers=headers)


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
