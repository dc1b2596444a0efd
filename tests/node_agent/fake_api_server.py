"""An API server on loopback with the pods and the node that a test wants there to be."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from servicekit.clock import Clock
from servicekit.kubernetes.access import Access
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.server import ApiServer


class FakeApiServer:
    """Lists what there is and tells every watch what changes; away, it answers 503 and ends its watches.

    Attributes:
        date: What its answers are dated, where that is not now.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {"pods": {}, "nodes": {}}
        self.selections: set[tuple[str, str]] = set()
        self.away = False
        self.date = ""
        self._version = 10
        self._watches: set[tuple[str, asyncio.Queue[bytes | None]]] = set()

    def put(self, kind: str, manifest: dict[str, Any]) -> None:
        self._version += 1
        manifest["metadata"]["resourceVersion"] = str(self._version)
        name = manifest["metadata"]["name"]
        told = "MODIFIED" if name in self.objects[kind] else "ADDED"
        self.objects[kind][name] = manifest
        self._tell(kind, told, manifest)

    def remove(self, kind: str, name: str) -> None:
        self._version += 1
        gone = self.objects[kind].pop(name)
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._tell(kind, "DELETED", gone)

    def leave(self) -> None:
        self.away = True
        for _, watch in self._watches:
            watch.put_nowait(None)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rpartition("/")[2]
        self.selections.add((kind, request.query.get("fieldSelector", "")))
        if self.away:
            return web.json_response({"message": "away"}, status=503)
        if "watch" in request.query:
            return await self._watch(kind, request)
        items = list(self.objects[kind].values())
        body = {"metadata": {"resourceVersion": str(self._version)}, "items": items}
        return web.json_response(body, headers=self._headers)

    async def _watch(self, kind: str, request: web.Request) -> web.StreamResponse:
        news: asyncio.Queue[bytes | None] = asyncio.Queue()
        since = int(request.query["resourceVersion"])
        for manifest in self.objects[kind].values():
            if int(manifest["metadata"]["resourceVersion"]) > since:
                news.put_nowait(_event("ADDED", manifest))
        self._watches.add((kind, news))
        response = web.StreamResponse(headers=self._headers)
        await response.prepare(request)
        try:
            while (line := await news.get()) is not None:
                await response.write(line)
        finally:
            self._watches.discard((kind, news))
        return response

    @property
    def _headers(self) -> dict[str, str]:
        return {"Date": self.date} if self.date else {}

    def _tell(self, kind: str, told: str, manifest: dict[str, Any]) -> None:
        for watched, news in self._watches:
            if watched == kind:
                news.put_nowait(_event(told, manifest))


def _event(told: str, manifest: dict[str, Any]) -> bytes:
    return json.dumps({"type": told, "object": manifest}).encode() + b"\n"


async def _nobody() -> dict[str, str]:
    return {}


@asynccontextmanager
async def fake_api_server(clock: ClusterClock | None = None) -> AsyncIterator[tuple[FakeApiServer, ApiServer]]:
    fake = FakeApiServer()
    application = web.Application()
    application.router.add_get("/{path:.*}", fake.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    access = Access(url=url, namespace="", tls=None, credentials=_nobody)
    server = ApiServer(access, 2.0, on_date=(clock or ClusterClock(Clock())).observe)
    try:
        yield fake, server
    finally:
        await server.close()
        fake.leave()
        await runner.cleanup()
