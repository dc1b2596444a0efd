"""Jobs under the real torchrun with the backend `kubeai`: kubeai-run, a supervisor, four hosts with a node agent each.

async with elastic(tmp_path, training) as job:
    await job.until_trains(4)
    job.announce("node2")
    assert (await job.until_trains(3)).redone == 0
    await job.finish()
"""

import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from simulator.cloud.paths import CloudPaths
from simulator.cloud.trace import Node
from simulator.harness import ReplayWorld, ServiceSettings, world
from simulator.services import JobProcess, ServedJobPlan
from simulator.status import ReadJobStatus
from tests.torchrun import torchrun_processes as processes
from tests.torchrun.torchrun_job import HOSTS, LEAST, SECONDS, TorchrunJob
from tests.torchrun.torchrun_processes import TorchrunTraining

LEAD = 300.0
"""Seconds from a notice to the end of its host. The tests end hosts themselves, so that none is gone in between."""
_NAME = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan(ServedJobPlan):
    """torchrun on each host."""

    training: TorchrunTraining

    def command(self, paths: CloudPaths, supervisor_url: str, token: Path) -> list[str]:
        rendezvous = ("--rdzv-backend", "kubeai", "--rdzv-id", self.name, "--nnodes", f"{LEAST}:{len(HOSTS)}")
        # As a module, because a checkout may have been installed before there was this script.
        each = [sys.executable, "-m", "kubeai.elastic.commands.each_host", "--local", "--restarts", "9"]
        options = ("--framework", "torchrun", "--save-grace", "20", "--stop-grace", "30")
        run = [*self._run(paths, supervisor_url, token), *options]
        return [*run, "--", *each, "--stop-grace", "20", "--", *self.training.torchrun(*rendezvous)]


@dataclass(slots=True, kw_only=True)
class ElasticTorchrun(TorchrunJob):
    """A job in a world of its own.

    Attributes:
        world: Its supervisor, hosts and node agents.
        job: The job under kubeai-run.
    """

    world: ReplayWorld
    job: JobProcess

    def check(self) -> None:
        self.job.child.check()

    def tail(self) -> str:
        return self.job.child.tail()

    def announce(self, *hosts: str, lead: float = LEAD) -> None:
        """Announce that hosts will be reclaimed after `lead` seconds, all of them together."""
        self.begin()
        for host in hosts:
            self.world.provider.notice(Node(host), time.time() + lead, "-".join(hosts))

    def withdraw(self, *hosts: str) -> None:
        """Withdraw that."""
        self.begin()
        for host in hosts:
            self.world.provider.withdraw(Node(host))

    def reclaim(self, *hosts: str) -> None:
        """End machines with all that is on them."""
        for host in hosts:
            self.world.provider.kill(Node(host))
            self.kill_host(host)

    def add(self, *hosts: str) -> None:
        """Let machines of these names come."""
        self.begin()
        for host in hosts:
            self.world.provider.add(Node(host))

    async def until_status(self, condition: Callable[[ReadJobStatus], bool], what: str) -> ReadJobStatus:
        """Wait until the supervisor's status of the job fulfils a condition."""

        def holds(job: ReadJobStatus | None) -> bool:
            self.check()
            return job is not None and condition(job)

        status = await self.world.until(lambda status: holds(status.job(_NAME)), f"{_NAME} to be {what}", SECONDS)
        found = status.job(_NAME)
        assert found is not None
        return found

    async def finish(self) -> int:
        """Let training end and wait for the end of the job; returns the number of steps."""
        last = self.end_soon()
        assert await self.job.wait(SECONDS) == 0, self.tail()
        return last


@asynccontextmanager
async def elastic(
    root: Path, training: TorchrunTraining, settings: Mapping[str, str] | None = None
) -> AsyncIterator[ElasticTorchrun]:
    """Start a job of four hosts in a new world; `settings` are variables of its supervisor.

    At the end everything is stopped. A process that survives that is an error.
    """
    # The job acts on a notice as soon as that is certain, instead of just in time, and hosts join at once.
    at_once = {"JOB_SUPERVISOR_JUST_IN_TIME": "false", "JOB_SUPERVISOR_WEIGH_JOINS": "false"}
    settings = {**at_once, **(settings or {})}
    async with world(root / "world", HOSTS, settings=ServiceSettings(settings)) as one:
        plan = _Plan(min_workers=LEAST, max_workers=len(HOSTS), name=_NAME, training=training)
        process = one.start_job(plan, training.environment())
        try:
            yield ElasticTorchrun(one.paths.root, training, world=one, job=process)
        finally:
            # What a test has frozen cannot be stopped.
            for host in HOSTS:
                processes.send(processes.everything(one.paths.root, host), signal.SIGCONT)
