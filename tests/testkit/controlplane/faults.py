"""A proxy in front of an API server that adds faults; which requests they hit is drawn from a seed."""

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web

from tests.testkit.controlplane.credentials import rewrite_server
from tests.testkit.controlplane.running import RunningCluster

RETRY_AFTER = 1
"""Seconds: what the API server's flow control answers."""

_TOO_OLD = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old version"}
_FORWARDED = ("Authorization", "Content-Type", "Accept")
_MAX_BODY = 8 * 1024 * 1024

Seconds = tuple[float, float]
"""Least and most; each time is drawn between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFaults:
    """Says which faults requests meet. Each probability applies to each request of its kind.

    Attributes:
        away: Every connection is cut.
        slow: How long each write takes, before or after it is made.
        limited: Probability of 429 with Retry-After.
        failing: Probability of 500, 502, 503 or 504.
        lost: Probability that a write is made and the connection is cut instead of an answer.
        cut: When watches are cut.
        late: How much later each event of a watch comes.
        expired: Probability that a watch is answered with 410.
    """

    away: bool = False
    slow: Seconds = (0.0, 0.0)
    limited: float = 0.0
    failing: float = 0.0
    lost: float = 0.0
    cut: Seconds | None = None
    late: Seconds = (0.0, 0.0)
    expired: float = 0.0


HEALTHY = InjectedFaults()


@dataclass(slots=True)
class FaultyApi:
    """The proxy.

    Attributes:
        kubeconfig: Leads to the API server through the proxy.
        injected: How often each fault was added.
        requests: How many requests have come.
    """

    kubeconfig: Path
    injected: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    _source: random.Random = field(default_factory=random.Random)
    _faults: InjectedFaults = HEALTHY
    _upstream: aiohttp.ClientSession | None = None
    _connections: set[asyncio.Transport] = field(default_factory=set)

    @classmethod
    @asynccontextmanager
    async def before(cls, cluster: RunningCluster, kubeconfig: Path, directory: Path, seed: int) -> AsyncIterator[Self]:
        """In front of that cluster, for the user of that kubeconfig; without faults at first."""
        proxy = cls(directory / "faulty.kubeconfig", _source=random.Random(seed))  # noqa: S311 - draws faults
        trusted = ssl.create_default_context(cafile=str(cluster.ca))
        connector = aiohttp.TCPConnector(ssl=trusted, limit=0)
        timeout = aiohttp.ClientTimeout()
        async with aiohttp.ClientSession(cluster.url, connector=connector, timeout=timeout) as proxy._upstream:
            app = web.Application(client_max_size=_MAX_BODY)
            app.router.add_route("*", "/{path:.*}", proxy._handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                rewrite_server(kubeconfig, proxy.kubeconfig, f"http://127.0.0.1:{runner.addresses[0][1]}")
                yield proxy
            finally:
                await runner.cleanup()

    @contextmanager
    def faults(self, faults: InjectedFaults) -> Iterator[None]:
        """Adds these faults for as long as the context lasts, to the watches that are open as well."""
        self._set(faults)
        try:
            yield
        finally:
            self._set(HEALTHY)

    def _set(self, faults: InjectedFaults) -> None:
        self._faults = faults
        for connection in self._connections if faults.away or faults.cut else ():
            connection.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        if self._faults.away:
            return self._cut_off(request, "away")
        if self._hits(self._faults.limited):
            self.injected["limited"] += 1
            return web.json_response(_status(429), status=429, headers={"Retry-After": str(RETRY_AFTER)})
        if self._hits(self._faults.failing):
            self.injected["failing"] += 1
            code = self._source.choice((500, 502, 503, 504))
            return web.json_response(_status(code), status=code)
        if "watch" in request.query:
            return await self._watch(request)
        return await self._read(request) if request.method == "GET" else await self._write(request)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        async with self._sent(request) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    async def _write(self, request: web.Request) -> web.StreamResponse:
        faults, seconds = self._faults, self._source.uniform(*self._faults.slow)
        is_lost, before = self._hits(faults.lost), self._source.choice((0.0, seconds))
        self.injected["slow"] += faults.slow != HEALTHY.slow
        await request.read()  # Also if its sender gives up meanwhile.
        await asyncio.sleep(before)
        answer = await self._read(request)
        await asyncio.sleep(seconds - before)
        return self._cut_off(request, "lost") if is_lost else answer

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self._hits(self._faults.expired):
            self.injected["expired"] += 1
            return web.json_response({"type": "ERROR", "object": _TOO_OLD})
        response = web.StreamResponse()
        assert request.transport is not None
        self._connections.add(request.transport)
        try:
            async with asyncio.timeout(self._source.uniform(*self._faults.cut) if self._faults.cut else None):
                await self._pass_on(request, response)
        except TimeoutError:
            self._cut_off(request, "cut")
        finally:
            self._connections.discard(request.transport)
        return response

    async def _pass_on(self, request: web.Request, response: web.StreamResponse) -> None:
        async with self._sent(request) as answer:
            response.set_status(answer.status)
            await response.prepare(request)
            async for line in answer.content:
                if self._faults.late != HEALTHY.late:
                    self.injected["late"] += 1
                    await asyncio.sleep(self._source.uniform(*self._faults.late))
                await response.write(line)

    @asynccontextmanager
    async def _sent(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._upstream is not None
        headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
        body = await request.read()
        try:
            async with self._upstream.request(
                request.method, request.rel_url, data=body or None, headers=headers
            ) as answer:
                yield answer
        except aiohttp.ClientConnectionError:
            raise web.HTTPBadGateway from None

    def _hits(self, probability: float) -> bool:
        return self._source.random() < probability

    def _cut_off(self, request: web.Request, why: str) -> web.StreamResponse:
        self.injected[why] += 1
        if request.transport is not None:
            request.transport.abort()
        return web.Response()


def _status(code: int) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "message": "an injected fault"}
