"""Real training processes: `kubeai.elastic` with an identity directory, as kubeai-run would leave it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kubeai.elastic import identity

from benchmarks.clients.process import Connected, FlagLowered
from benchmarks.harness.client import Client

_Answers = Connected | FlagLowered


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run that the processes belong to."""

    address: str
    token: str
    job: str
    number: int = 1
    ca: Path | None = None


class TrainingProcesses:
    """The processes, all of them listening."""

    def __init__(self, clients: Sequence[Client[_Answers]]) -> None:
        self._clients = clients

    async def lowered_at(self, which: slice = slice(None)) -> list[float]:
        """When the flags of these processes fell (CLOCK_MONOTONIC); waits for it."""
        answers = await asyncio.gather(*(client.receive() for client in self._clients[which]))
        return [answer.at for answer in answers if isinstance(answer, FlagLowered)]


@asynccontextmanager
async def training_processes(
    directory: Path, run: Run, hosts: Sequence[str], first_rank: int = 0
) -> AsyncIterator[TrainingProcesses]:
    """One process a host, ranks counted from `first_rank`; the supervisor has spoken to all of them."""
    _identify(directory, run)
    async with AsyncExitStack() as stack:
        clients: list[Client[_Answers]] = []
        for rank, host in enumerate(hosts, first_rank):
            env = {"KUBEAI_DIR": str(directory), "KUBEAI_HOST": host, "RANK": str(rank)}
            client = await Client[_Answers].start("process", Connected | FlagLowered, env=env, quiet=True)  # type: ignore[arg-type]
            stack.push_async_callback(client.end)
            clients.append(client)
        for client in clients:
            await client.receive()
        yield TrainingProcesses(clients)


def _identify(directory: Path, run: Run) -> None:
    directory.mkdir(parents=True, mode=0o700)
    identity.write(identity.Identity(directory, run.address, run.token, run.job, run.number, run.ca))
