"""A keeper on loopback with real files in tmpfs, an API server that reviews tokens, and clients."""

import asyncio
import secrets
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from node_agent.keeper.files import PartFiles
from node_agent.keeper.keeper import StateKeeper
from node_agent.keeper.ledger import Bounds, Ledger, Tenant
from node_agent.keeper.refusals import RefusalCode
from node_agent.keeper.server import KeeperServer
from node_agent.keeper.tenants import ReviewedTenants, Tenants
from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.access import Access
from servicekit.kubernetes.server import ApiServer
from tests.testkit.clocks import HandClock

AUDIENCE = "job-supervisor.kube-ai.io"
MIB = 1024 * 1024
_SHM = Path("/dev/shm")  # noqa: S108 - a tmpfs that every Linux has
ANY_PORT = Address("127.0.0.1", 0)


def a_state() -> str:
    return secrets.token_hex(32)


@contextmanager
def memory() -> Iterator[Path]:
    """A directory in a real tmpfs."""
    if not _SHM.is_dir():
        pytest.skip("there is no /dev/shm")
    with tempfile.TemporaryDirectory(dir=_SHM, prefix="state-keeper-") as directory:
        yield Path(directory) / "states"


class KeeperClock(HandClock):
    """Stands still for expiry and for rates, until the test moves it."""

    def now(self) -> float:
        return self.system


@dataclass
class Reviews:
    """An API server that knows the namespace of each token, and can be down; `held` delays its answers."""

    namespaces: dict[str, str] = field(default_factory=lambda: {"of-a": "a", "of-b": "b"})
    audience: str = AUDIENCE
    down: bool = False
    asked: int = 0
    held: asyncio.Event | None = None

    async def review(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.held is not None:
            await self.held.wait()
        if self.down:
            return web.json_response({"message": "no"}, status=500)
        spec = (await request.json())["spec"]
        namespace = self.namespaces.get(spec["token"])
        if namespace is None:
            return web.json_response({"status": {"authenticated": False}}, status=201)
        pod = {"authentication.kubernetes.io/pod-name": ["w"], "authentication.kubernetes.io/pod-uid": ["u"]}
        user = {"username": f"system:serviceaccount:{namespace}:default", "extra": pod}
        status = {"authenticated": True, "audiences": [self.audience], "user": user}
        return web.json_response({"status": status}, status=201)


async def _no_credentials() -> Mapping[str, str]:
    return {}


@asynccontextmanager
async def reviewing(reviews: Reviews, clock: Clock) -> AsyncIterator[ReviewedTenants]:
    app = web.Application()
    app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", reviews.review)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    access = Access(url=f"http://127.0.0.1:{runner.addresses[0][1]}", namespace="", credentials=_no_credentials)
    server = ApiServer(access, 5.0)
    try:
        yield ReviewedTenants(server, AUDIENCE, clock)
    finally:
        await server.close()
        await runner.cleanup()


@dataclass
class KeeperScene:
    directory: Path
    keeper: StateKeeper
    address: Address
    http: aiohttp.ClientSession
    clock: KeeperClock
    reviews: Reviews
    refused: Counter[RefusalCode]

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    async def put(
        self, state: str, part: int | str, data: bytes, by: str = "of-a", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        sent = {"Authorization": f"Bearer {by}", "Keep-Seconds": "60", **headers}
        async with self.http.put(self.url(f"/v1/states/{state}/{part}"), data=BytesIO(data), headers=sent) as answer:
            return answer.status, await answer.json() if answer.status != 201 else {}

    async def get(self, state: str, part: int) -> bytes | None:
        async with self.http.get(self.url(f"/v1/states/{state}/{part}")) as answer:
            return await answer.read() if answer.status == 200 else None

    async def delete(self, state: str) -> int:
        async with self.http.delete(self.url(f"/v1/states/{state}")) as answer:
            return answer.status

    async def room(self, by: str = "of-a") -> int:
        headers = {"Authorization": f"Bearer {by}"}
        async with self.http.get(self.url("/v1/room"), headers=headers) as answer:
            assert answer.status == 200
            return int((await answer.json())["bytes"])

    @property
    def free(self) -> int:
        """The room of tenant a."""
        return self.keeper.room(Tenant("a"))

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.name != "lock")

    async def begin(self, state: str, part: int, length: int, by: str = "of-a") -> asyncio.StreamWriter:
        """Sends the head of an upload on a connection of its own."""
        _reader, writer = await self.connect()
        writer.write(head(state, part, length, by))
        await writer.drain()
        return writer

    async def connect(self, peer: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects from that address of loopback."""
        return await asyncio.open_connection(self.address.host, self.address.port, local_addr=(peer, 0))


def head(state: str, part: int, length: int | str, by: str = "of-a", *more: str) -> bytes:
    lines = [
        f"PUT /v1/states/{state}/{part} HTTP/1.1",
        "Host: keeper",
        f"Authorization: Bearer {by}",
        "Keep-Seconds: 60",
        f"Content-Length: {length}",
        *more,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@asynccontextmanager
async def keeping(  # noqa: PLR0913 - all but the first have defaults
    directory: Path,
    *,
    host: int = 8 * MIB,
    tenant: int = 8 * MIB,
    seconds: float = 600.0,
    clock: KeeperClock | None = None,
    reviews: Reviews | None = None,
    tenants: Tenants | None = None,
    stall_seconds: float = 10.0,
) -> AsyncIterator[KeeperScene]:
    clock, reviews, refused = clock or KeeperClock(1e9), reviews or Reviews(), Counter[RefusalCode]()
    bulkhead = Bulkhead(clock)
    files = PartFiles(directory)
    files.open()
    keeper = StateKeeper(
        ledger=Ledger(Bounds(host=host, tenant=tenant)),
        files=files,
        clock=clock,
        bulkhead=bulkhead,
        max_seconds=seconds,
    )
    keeper.recover()
    freeing = asyncio.create_task(keeper.free())

    def on_refused(code: RefusalCode) -> None:
        refused[code] += 1

    try:
        async with reviewing(reviews, clock) as reviewed, aiohttp.ClientSession() as http:
            server = KeeperServer(
                keeper=keeper,
                tenants=tenants or reviewed,
                address=ANY_PORT,
                clock=clock,
                bulkhead=bulkhead,
                on_refused=on_refused,
                stall_seconds=stall_seconds,
            )
            async with server.serving() as address:
                yield KeeperScene(directory, keeper, address, http, clock, reviews, refused)
        assert not any(bulkhead.counts.values()), bulkhead.counts
    finally:
        freeing.cancel()
        await asyncio.gather(freeing, return_exceptions=True)
        files.close()
