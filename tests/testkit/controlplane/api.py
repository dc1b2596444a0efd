"""A client of the API server for tests: paths and manifests as everybody knows them, JSON in and out."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp

from tests.testkit.connections import TlsConnector
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import NotYet

_REQUEST_SECONDS = 30.0

Manifest = Mapping[str, Any]


class ObjectRefused(Exception):  # noqa: N818  # It names what is so.
    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status = status


class ObjectMissing(ObjectRefused, NotYet):
    """404: a test that waits for the object looks again."""


class Api:
    """Sends the requests of one user. Raises ObjectRefused for every answer that is no success."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def get(self, path: str, **query: str) -> Any:
        """The resource or list at that path, such as /api/v1/nodes."""
        return await self._request("GET", path, query)

    async def create(self, path: str, manifest: Manifest) -> Any:
        return await self._request("POST", path, {}, manifest)

    async def patch(self, path: str, changes: Manifest) -> Any:
        return await self._request("PATCH", path, {}, changes)

    async def delete(self, path: str, options: Manifest | None = None) -> Any:
        return await self._request("DELETE", path, {}, options)

    async def watch(self, path: str, version: str, **query: str) -> AsyncGenerator[Any, None]:
        """Each event of a list after that resource version, an error too; ends when the server ends it."""
        asked = {**query, "watch": "true", "resourceVersion": version}
        async with self.session.get(path, params=asked, timeout=aiohttp.ClientTimeout()) as answer:
            await _refuse(answer)
            async for line in answer.content:
                yield json.loads(line)

    async def _request(self, method: str, path: str, query: Mapping[str, str], body: Manifest | None = None) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        while True:
            async with self.session.request(
                method, path, params=query, data=data, headers={"Content-Type": kind}
            ) as answer:
                if answer.status != HTTPStatus.TOO_MANY_REQUESTS or "Retry-After" not in answer.headers:
                    await _refuse(answer)
                    return await answer.json(content_type=None)
                # One that has just started reads its resources first.
                pause = float(answer.headers["Retry-After"])
            await asyncio.sleep(pause)


async def _refuse(answer: aiohttp.ClientResponse) -> None:
    if not answer.ok:
        kind = ObjectMissing if answer.status == HTTPStatus.NOT_FOUND else ObjectRefused
        raise kind(answer.status, await answer.text())


@asynccontextmanager
async def client(cluster: RunningCluster, token: str | None = None) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession(
        cluster.url,
        headers={"Authorization": f"Bearer {token or cluster.token}"},
        connector=TlsConnector(ssl.create_default_context(cafile=str(cluster.ca))),
        timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
    ) as session:
        yield Api(session)
