"""Real training processes: `kubeai.elastic` with an identity directory, as kubeai-run would leave it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kubeai.elastic import identity

from benchmarks.clients.process import Fell, Listening
from benchmarks.harness.client import Client

_Answers = Listening | Fell


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run that the processes belong to."""

    address: str
    token: str
    job: str
    number: int = 1
    ca: Path | None = None


class Trainings:
    """The processes, all of them listening."""

    def __init__(self, clients: Sequence[Client[_Answers]]) -> None:
        self._clients = clients

    async def fell(self, which: slice = slice(None)) -> list[float]:
        """When the flags of these processes fell (CLOCK_MONOTONIC); waits for it."""
        heard = await asyncio.gather(*(client.hear() for client in self._clients[which]))
        return [answer.at for answer in heard if isinstance(answer, Fell)]


@asynccontextmanager
async def trainings(directory: Path, run: Run, hosts: Sequence[str], first_rank: int = 0) -> AsyncIterator[Trainings]:
    """One process a host, ranks counted from `first_rank`; the supervisor has spoken to all of them."""
    _identify(directory, run)
    async with AsyncExitStack() as stack:
        clients: list[Client[_Answers]] = []
        for rank, host in enumerate(hosts, first_rank):
            env = {"KUBEAI_DIR": str(directory), "KUBEAI_HOST": host, "RANK": str(rank)}
            client = await Client[_Answers].start("process", Listening | Fell, env=env, quiet=True)  # type: ignore[arg-type]
            stack.push_async_callback(client.end)
            clients.append(client)
        for client in clients:
            await client.hear()
        yield Trainings(clients)


def _identify(directory: Path, run: Run) -> None:
    directory.mkdir(parents=True, mode=0o700)
    identity.write(identity.Identity(directory, run.address, run.token, run.job, run.number, run.ca))
