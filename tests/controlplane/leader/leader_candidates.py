"""Candidates for a lease in the test's own process, and the lease as an administrator sees it."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.election import Election, ElectionConfig, LeaseLostError
from servicekit.kubernetes.server import ApiServer
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.waiting import PATIENCE

SECONDS = 1
"""A lease's duration: the least there is."""

LONG = 8
"""One within half of which everything is done that does not wait for it; who comes first waits for all of it."""

_TIMEOUT = 0.7
"""Of one request, as a part of the duration."""

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


@dataclass(slots=True)
class Candidate:
    election: Election
    tasks: list[asyncio.Task[None]]

    @property
    def leads(self) -> bool:
        return self.election.certain

    async def gained(self, within: float = PATIENCE) -> int:
        async with asyncio.timeout(within):
            return await self.election.gained()

    async def lost(self) -> LeaseLostError:
        async with asyncio.timeout(60):
            await asyncio.wait([self.tasks[1]])
        error = self.tasks[1].exception()
        assert isinstance(error, LeaseLostError)
        return error

    async def die(self) -> None:
        """Without a word, as by kill -9."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def stop(self) -> None:
        await self.die()
        await self.election.release()


@dataclass(slots=True)
class Hall:
    """The candidates of one lease; `highest` is the highest stored epoch."""

    place: InstalledPlace
    name: str = field(default_factory=lambda: f"lease-{secrets.token_hex(4)}")
    highest: int = 0
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @classmethod
    @asynccontextmanager
    async def open(cls, place: InstalledPlace) -> AsyncIterator[Self]:
        hall = cls(place)
        async with hall.stack:
            yield hall

    @property
    def api(self) -> Api:
        return self.place.api

    @property
    def path(self) -> str:
        return f"{_LEASES}/{self.name}"

    async def lease(self) -> Any:
        return (await self.api.get(self.path))["spec"]

    async def put(self, **spec: Any) -> None:
        await self.api.create(_LEASES, {"metadata": {"name": self.name}, "spec": spec})

    async def runs(self, identity: str, seconds: int = SECONDS) -> Candidate:
        server = await ApiServer.connect(str(self.place.plane.cluster.kubeconfig), _TIMEOUT * seconds)
        self.stack.push_async_callback(server.close)
        config = ElectionConfig(namespace="default", name=self.name, identity=identity, seconds=seconds)
        election = Election(server, config, Clock(), self._highest, Bulkhead(Clock()))
        await election.first()
        candidate = Candidate(election, [asyncio.create_task(election.follow()), asyncio.create_task(election.run())])
        self.stack.push_async_callback(candidate.die)
        return candidate

    async def _highest(self) -> int:
        return self.highest
