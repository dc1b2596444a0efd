"""A job that records its steps, under any rendezvous backend, with methods to wait for it and to disturb it."""

import asyncio
import json
import signal
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from simulator.cloud.process import environment
from tests.testkit.waiting import until
from tests.torchrun import torchrun_processes as processes
from tests.torchrun.torchrun_processes import PROCESSES, TorchrunTraining
from tests.torchrun.torchrun_records import Cost, Stepped, cost, latest, read

HOSTS = ("node1", "node2", "node3", "node4")
LEAST = 2
SECONDS = 180.0
"""The eight processes of a start take 20 to 60 s on two busy cores, nearly all of it for their imports."""
_STEPS = 15
"""So many steps of a new world say that it trains."""
_LAST_STEPS = 40
"""No rank is so far ahead that it has begun the last step when it is told which one that is."""

STEPS_IN_PROCESS = 1500
"""Training in process has a fixed number of steps. It must be the script's: enough to the end of a test."""


@dataclass(slots=True)
class TorchrunJob(ABC):
    """A running job.

    Attributes:
        root: The mark of its processes.
        training: What is trained.
        since: When the last change began, in Unix seconds.
        hit: The host to which it happened, if it was not announced.
    """

    root: Path
    training: TorchrunTraining
    since: float = 0.0
    hit: str = ""

    @abstractmethod
    def check(self) -> None:
        """Raise an error if a process has ended that should run."""

    @abstractmethod
    def tail(self) -> str:
        """Return the last lines of the job's output."""

    def records(self) -> list[Stepped]:
        return read(self.training.directory)

    def begin(self, hit: str = "") -> None:
        """Note that something happens to the job now."""
        self.since, self.hit = time.time(), hit

    def cost(self) -> Cost:
        """What it cost, once the job trains again."""
        return cost(self.records(), self.since, self.hit)

    async def until_trains(self, hosts: int) -> Cost | None:
        """Wait until so many hosts have trained for a while since the last change; returns what the change cost."""

        def trains() -> bool:
            self.check()
            steps = [one for one in self.records() if one.at > self.since and one.rank == 0]
            ours = {one.step for one in steps if one.world == hosts * PROCESSES}
            return bool(steps) and steps[-1].world == hosts * PROCESSES and len(ours) >= _STEPS

        await until(trains, self.tail, seconds=SECONDS, every=0.2)
        return self.cost() if self.since else None

    async def until_step_after(self, steps: int) -> None:
        """Wait until the job has trained so many steps more."""
        first = self._step()

        def trained() -> bool:
            self.check()
            return self._step() >= first + steps

        await until(trained, self.tail, seconds=SECONDS, every=0.2)

    async def until_parked(self, host: str) -> None:
        """Wait until a host has its elastic agent and no worker."""

        def parked() -> bool:
            self.check()
            return bool(processes.agents(self.root, host)) and not processes.workers(self.root, host)

        await until(parked, self.tail, seconds=SECONDS, every=0.1)

    def resources(self, *hosts: str) -> dict[int, processes.Resources]:
        """Return the resources of the agents and workers of hosts, by process."""
        pids = [
            pid for host in hosts for found in (processes.agents, processes.workers) for pid in found(self.root, host)
        ]
        return {pid: processes.Resources.of(pid) for pid in pids}

    def terminate_agent(self, host: str) -> None:
        """End the elastic agent of a host as its pod would be ended."""
        self._send(host, processes.agents(self.root, host), signal.SIGTERM)

    def kill_agent(self, host: str) -> None:
        """Kill the elastic agent of a host, and nothing else."""
        self._send(host, processes.agents(self.root, host), signal.SIGKILL)

    def kill_host(self, host: str) -> None:
        """Kill all that the job has on a host."""
        self._send(host, processes.everything(self.root, host), signal.SIGKILL)

    def kill_worker(self, host: str) -> None:
        """Kill one worker of a host."""
        self._send(host, processes.workers(self.root, host)[:1], signal.SIGKILL)

    def freeze(self, host: str) -> None:
        """Stop all that the job has on a host."""
        self._send(host, processes.everything(self.root, host), signal.SIGSTOP)

    def thaw(self, host: str) -> None:
        """Let it go on."""
        self._send(host, processes.everything(self.root, host), signal.SIGCONT)

    def end_soon(self) -> int:
        """Tell all ranks at which step training ends; returns it."""
        last = STEPS_IN_PROCESS if self.training.in_process else self._step() + _LAST_STEPS
        draft = self.training.directory / "end.draft"
        draft.write_text(str(last), encoding="ascii")
        draft.replace(self.training.directory / "end")
        return last

    def _step(self) -> int:
        now = latest(self.records())
        return now.step if now else 0

    def _send(self, host: str, pids: list[int], number: signal.Signals) -> None:
        assert pids, f"nothing to send {number.name} to on {host}"
        self.begin(host)
        processes.send(pids, number)


def parameters(training: TorchrunTraining) -> list[float]:
    """All parameters that a training has ended with."""
    saved = json.loads((training.directory / "parameters.json").read_text(encoding="ascii"))
    return [number for parameter in saved for number in parameter]


async def assert_as_alone(job: TorchrunJob, root: Path, steps: int) -> None:
    """Check that the parameters are those of a single process that trained the same steps."""
    directory = root / "alone"
    directory.mkdir()
    alone = replace(job.training, directory=directory)
    await _run_alone(root, alone, steps)
    assert parameters(job.training) == pytest.approx(parameters(alone), rel=1e-9, abs=1e-12)


async def _run_alone(root: Path, training: TorchrunTraining, steps: int) -> None:
    """Train so many steps in a single process, which writes its parameters."""
    (training.directory / "end").write_text(str(steps), encoding="ascii")
    variables = {**training.environment(), **processes.alone_environment(), "TORCHRUN_STEP_SECONDS": "0"}
    child = await asyncio.create_subprocess_exec(*training.alone(), env=environment(root, variables))
    assert await child.wait() == 0
