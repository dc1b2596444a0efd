"""Records every version of a resource, as `kubectl get -w` shows it."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby

import aiohttp

from tests.testkit.connections import TlsConnector
from tests.testkit.controlplane.running import RunningCluster

_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One line of it.

    Attributes:
        at: When it was shown, Unix seconds.
        columns: By their heads.
    """

    at: float
    columns: dict[str, object]


@dataclass(slots=True)
class LineHistory:
    lines: list[HistoryLine] = field(default_factory=list)

    def of(self, name: str) -> list[HistoryLine]:
        return [line for line in self.lines if line.columns["Name"] == name]

    def phases(self, name: str) -> list[str]:
        return [str(phase) for phase, _ in groupby(line.columns["Phase"] for line in self.of(name)) if phase]

    def first(self, name: str, phase: str, after: float = 0.0) -> float:
        """When it was first shown in that phase since then, Unix seconds."""
        return next(line.at for line in self.of(name) if line.at >= after and line.columns["Phase"] == phase)


@asynccontextmanager
async def watching(cluster: RunningCluster, path: str) -> AsyncIterator[LineHistory]:
    """Records every line of that list while the context lasts, also over the API server's restarts."""
    history = LineHistory()
    task = asyncio.create_task(_follow(cluster, path, history))
    try:
        yield history
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _follow(cluster: RunningCluster, path: str, history: LineHistory) -> None:
    headers = {
        "Authorization": f"Bearer {cluster.token}",
        "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io",
    }
    trusted = ssl.create_default_context(cafile=str(cluster.ca))
    async with aiohttp.ClientSession(
        cluster.url, headers=headers, connector=TlsConnector(trusted), timeout=aiohttp.ClientTimeout()
    ) as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(path, params={"watch": "true"}) as answer:
                    await _read(answer, history)
            await asyncio.sleep(_RETRY_SECONDS)


async def _read(answer: aiohttp.ClientResponse, history: LineHistory) -> None:
    heads: list[str] = []
    async for line in answer.content:
        table = json.loads(line)["object"]
        # Named with the first one alone.
        heads = [column["name"] for column in table.get("columnDefinitions") or []] or heads
        for row in table.get("rows") or []:
            history.lines.append(HistoryLine(time.time(), dict(zip(heads, row["cells"], strict=True))))
