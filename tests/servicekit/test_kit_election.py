"""How long the holder of a lease counts on it, when the API server answers it late or not at all."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.access import Access
from servicekit.kubernetes.election import Election, ElectionConfig
from servicekit.kubernetes.errors import ApiUnavailableError, ConflictError
from servicekit.kubernetes.server import ApiServer, Call
from tests.testkit.waiting import PATIENCE, until

SECONDS = 1


class Leases:
    """The one Lease of an API server; nobody holds it at first."""

    def __init__(self) -> None:
        self.version = 1
        self.spec: dict[str, Any] = {"leaseDurationSeconds": SECONDS}
        self.changed = asyncio.Event()

    @property
    def manifest(self) -> dict[str, Any]:
        metadata = {"name": "lease", "namespace": "space", "uid": "u", "resourceVersion": str(self.version)}
        return {"metadata": metadata, "spec": self.spec}

    def handle(self, call: Call) -> dict[str, Any]:
        if call.method == "PATCH":
            self._replace(*json.loads(call.body or b""))
        if call.path.endswith("/lease"):
            return self.manifest
        return {"metadata": {"resourceVersion": str(self.version)}, "items": [self.manifest]}

    def _replace(self, read: dict[str, Any], new: dict[str, Any]) -> None:
        if read["value"] != str(self.version):
            raise ConflictError("it has changed")
        self.version, self.spec = self.version + 1, new["value"]
        self.changed.set()
        self.changed = asyncio.Event()


class Connection(ApiServer):
    """A candidate's connection, on which requests or answers can be lost.

    Attributes:
        is_cut: Whether no request arrives.
        is_open: Set while answers and events arrive.
        answered: The number of answers that have arrived.
    """

    def __init__(self, leases: Leases, timeout_seconds: float) -> None:
        super().__init__(Access(url="", namespace="space", tls=None, credentials=_nobody), timeout_seconds)
        self._leases = leases
        self.is_cut = False
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.answered = 0

    async def request(self, call: Call) -> bytes:
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await self._arrival()
                answer = self._leases.handle(call)
                await self.is_open.wait()
        except TimeoutError as error:
            raise ApiUnavailableError("no answer") from error
        self.answered += 1
        return json.dumps(answer).encode()

    async def lines(
        self, call: Call, silent_seconds: float, on_open: Callable[[], None]
    ) -> AsyncGenerator[bytes, None]:
        del silent_seconds
        on_open()
        seen = int((call.query or {})["resourceVersion"])
        while True:
            await self._arrival()
            if self._leases.version == seen:
                await self._leases.changed.wait()
                continue
            await self.is_open.wait()
            seen = self._leases.version
            yield json.dumps({"type": "MODIFIED", "object": self._leases.manifest}).encode()

    async def _arrival(self) -> None:
        if self.is_cut:
            await asyncio.Event().wait()


async def _nobody() -> dict[str, str]:
    return {}


async def _nothing_written() -> int:
    return 0


class SetClock(Clock):
    """A clock whose monotonic instant the test sets."""

    at = 100.0

    def monotonic(self) -> float:
        return self.at


@asynccontextmanager
async def candidate(
    leases: Leases, identity: str, clock: Clock, timeout_seconds: float
) -> AsyncIterator[tuple[Election, Connection]]:
    connection = Connection(leases, timeout_seconds)
    config = ElectionConfig(namespace="space", name="lease", identity=identity, seconds=SECONDS)
    election = Election(connection, config, clock, _nothing_written, Bulkhead(Clock()))
    await election.first()
    tasks = [asyncio.create_task(election.follow()), asyncio.create_task(election.run())]
    try:
        yield election, connection
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await connection.close()


async def test_a_renewal_that_is_answered_late_counts_from_when_it_was_sent() -> None:
    """Others may have seen it at that moment already, and take the lease a whole duration later."""
    leases, clock = Leases(), SetClock()
    async with candidate(leases, "first", clock, PATIENCE) as (election, connection):
        await election.gained()
        version, answered = leases.version, connection.answered
        connection.is_open.clear()
        await until(lambda: leases.version > version)
        clock.at += 0.75 * SECONDS
        connection.is_open.set()
        connection.is_open.clear()
        await until(lambda: connection.answered > answered)
        clock.at = SetClock.at + 0.99 * SECONDS
        assert election.certain
        clock.at = SetClock.at + SECONDS
        assert not election.certain


@pytest.mark.parametrize("lost", ["requests", "answers"])
async def test_a_leader_that_alone_is_cut_off_is_not_certain_any_more_when_another_one_leads(lost: str) -> None:
    """Neither with requests that hang nor with a renewal that others have seen, and whose answer never comes."""
    leases, limit = Leases(), SECONDS * 2 / 3
    async with candidate(leases, "first", Clock(), limit) as (first, connection):
        await first.gained()
        async with candidate(leases, "second", Clock(), limit) as (second, _):
            if lost == "requests":
                connection.is_cut = True
            else:
                connection.is_open.clear()
            async with asyncio.timeout(PATIENCE):
                await second.gained()
            assert not first.certain
