"""A client of the API server for tests: paths and manifests as everybody knows them, JSON in and out."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp

from tests.testkit.controlplane.running import Cluster

_REQUEST_SECONDS = 30.0
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.05

Manifest = Mapping[str, Any]
T = TypeVar("T")


class Refused(Exception):  # noqa: N818  # It names what is so.
    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status = status


class Api:
    """Requests of one user; raises Refused for every answer that is no success."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

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
        async with self._session.get(path, params=asked, timeout=aiohttp.ClientTimeout()) as answer:
            await _refuse(answer)
            async for line in answer.content:
                yield json.loads(line)

    async def _request(self, method: str, path: str, query: Mapping[str, str], body: Manifest | None = None) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, path, params=query, data=data, headers={"Content-Type": kind}
        ) as answer:
            await _refuse(answer)
            return await answer.json(content_type=None)


async def _refuse(answer: aiohttp.ClientResponse) -> None:
    if not answer.ok:
        raise Refused(answer.status, await answer.text())


@asynccontextmanager
async def client(cluster: Cluster, token: str | None = None) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession(
        cluster.url,
        headers={"Authorization": f"Bearer {token or cluster.token}"},
        connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(cluster.ca))),
        timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
    ) as session:
        yield Api(session)


async def until(condition: Callable[[], Awaitable[T]], what: str, seconds: float = _PATIENCE_SECONDS) -> T:
    """The first answer that is true in Python's sense; what is not there yet may be refused with 404."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = await _unless_missing(condition)
                if found:
                    return found
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


async def _unless_missing(condition: Callable[[], Awaitable[T]]) -> T | None:
    try:
        return await condition()
    except Refused as refused:
        if refused.status != HTTPStatus.NOT_FOUND:
            raise
        return None
