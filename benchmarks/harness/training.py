"""Real training processes: `kubeai.elastic` with an identity directory like that of kubeai-run."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kubeai.elastic import identity

from benchmarks.clients.process import Connected, FlagLowered
from benchmarks.harness.client import ClientProcess

_Answers = Connected | FlagLowered


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    address: str
    token: str
    job: str
    number: int = 1
    ca: Path | None = None


class TrainingProcesses:
    """The processes, all of them connected."""

    def __init__(self, clients: Sequence[ClientProcess[_Answers]]) -> None:
        self._clients = clients

    async def lowered_at(self, which: slice = slice(None)) -> list[float]:
        """Wait until the flags of these processes are lowered, and return when (CLOCK_MONOTONIC)."""
        answers = await asyncio.gather(*(client.receive() for client in self._clients[which]))
        return [answer.at for answer in answers if isinstance(answer, FlagLowered)]


@asynccontextmanager
async def training_processes(
    directory: Path, run: TrainingRun, hosts: Sequence[str], first_rank: int = 0
) -> AsyncIterator[TrainingProcesses]:
    """Start one process per host, with ranks from `first_rank`, and wait until all are connected."""
    _identify(directory, run)
    async with AsyncExitStack() as stack:
        clients: list[ClientProcess[_Answers]] = []
        for rank, host in enumerate(hosts, first_rank):
            env = {"KUBEAI_DIR": str(directory), "KUBEAI_HOST": host, "RANK": str(rank)}
            client = await ClientProcess[_Answers].start("process", Connected | FlagLowered, env=env, quiet=True)  # type: ignore[arg-type]
            stack.push_async_callback(client.end)
            clients.append(client)
        for client in clients:
            await client.receive()
        yield TrainingProcesses(clients)


def _identify(directory: Path, run: TrainingRun) -> None:
    directory.mkdir(parents=True, mode=0o700)
    identity.write(identity.RunIdentity(directory, run.address, run.token, run.job, run.number, run.ca))
