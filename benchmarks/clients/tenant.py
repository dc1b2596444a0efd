"""A launcher token that registers as many jobs as the supervisor accepts and keeps their streams open."""

import asyncio
import ssl
from typing import Any

import aiohttp
import msgspec

from benchmarks.clients.jsonlines import serve

_AT_ONCE = 4
_ACCEPTED = 200


class TenantSetup(msgspec.Struct, frozen=True, tag=True):
    """The supervisor, the token, and the number and size of the jobs. `running` jobs report that they run."""

    url: str
    ca: str | None
    token: str
    jobs: int
    hosts: int
    running: bool


class TenantAnswer(msgspec.Struct, frozen=True):
    """The number of accepted jobs."""

    accepted: int


class _LoadTenant:
    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._streams: list[aiohttp.ClientResponse] = []
        self._readers: list[asyncio.Task[None]] = []

    async def handle(self, command: TenantSetup) -> TenantAnswer:
        trust: Any = True if command.ca is None else ssl.create_default_context(cafile=command.ca)
        connector = aiohttp.TCPConnector(limit=0, ssl=trust)
        self._session = session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        gate = asyncio.Semaphore(_AT_ONCE)

        async def register(number: int) -> None:
            async with gate:
                headers = {"Authorization": f"Bearer {command.token}"}
                url = f"{command.url}/v1/launchers/stream"
                answer = await session.post(url, json=_hello(number, command), headers=headers)
                if answer.status == _ACCEPTED:
                    self._streams.append(answer)
                    self._readers.append(asyncio.create_task(_read(answer)))
                else:
                    answer.release()

        await asyncio.gather(*(register(number) for number in range(command.jobs)))
        return TenantAnswer(len(self._streams))


async def _read(answer: aiohttp.ClientResponse) -> None:
    async for _ in answer.content.iter_any():
        pass


def _hello(number: int, command: TenantSetup) -> dict[str, Any]:
    hosts = [f"nowhere-{number}-{host}-{'x' * 70}" for host in range(command.hosts)]
    run = 1 if command.running else 0
    report = {"revision": 1, "hosts": hosts, "run": run, "running": command.running, "exit_code": None, "restarts": 0}
    return {
        "job": f"crowd-{number}",
        "instance": f"instance-{number}",
        "framework": "horovod",
        "min_workers": 1,
        "max_workers": command.hosts,
        "requested_workers": command.hosts,
        "report": {**report, "applied": 0, "result": None},
    }


if __name__ == "__main__":
    serve(msgspec.json.Decoder(TenantSetup), _LoadTenant().handle)
