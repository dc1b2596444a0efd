"""Fifty nodes and twenty jobs of one supervisor.

Notices come and go, and the test records everything sent to the jobs.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.serving import AgentPeer, LauncherPeer, Lines, ServedPeers, noticed
from tests.testkit.waiting import until

NODES, JOBS = 50, 20
WINDOW_SECONDS = 1.25
"""The supervisor of a crowd must be started with this window, by which `Crowd.splits` judges."""

_WAVE = 5
_LEAD_SECONDS = 900.0
_MIN_WORKERS = 1


@dataclass(slots=True)
class FaultsJob:
    """A job and what it is told; its launcher puts every order in place.

    Attributes:
        seen: How many orders had come when its notices changed last.
        changed_at: When that was, by the loop's clock.
    """

    name: str
    nodes: Sequence[str]
    launcher: LauncherPeer
    rank: Lines
    orders: list[dict[str, Any]] = field(default_factory=list)
    directives: list[dict[str, Any]] = field(default_factory=list)
    seen: int = 0
    changed_at: float = 0.0

    @property
    def exclusions(self) -> set[str]:
        return set(self.orders[-1]["exclusions"])

    def changes(self) -> list[Sequence[str]]:
        """Returns the lists of left-out hosts since the job's notices changed last, one for each change."""
        lists = [order["exclusions"] for order in self.orders[self.seen - 1 :]]
        return [after for before, after in itertools.pairwise(lists) if before != after]

    async def follow_orders(self) -> None:
        while line := await self.launcher.lines.any():
            if line["type"] == "order":
                self.orders.append(line)
                await self.launcher.says(applied=line["generation"])

    async def follow_directives(self) -> None:
        while line := await self.rank.any():
            if line["type"] != "heartbeat":
                self.directives.append(line)

    def stops(self) -> list[dict[str, Any]]:
        """Returns what it was told that would end it, as no notice of these tests takes all of its nodes."""
        ended = [line for line in self.directives if line.get("directive") == "STOP" or line["type"] == "goodbye"]
        return [*ended, *(order for order in self.orders if order["order"] != "run")]


@dataclass(slots=True)
class Crowd:
    """Agents of all nodes, and the jobs.

    Attributes:
        standing: The nodes whose last announcement is a notice.
    """

    here: InstalledPlace
    agents: Mapping[str, AgentPeer]
    jobs: Mapping[str, FaultsJob]
    standing: set[str] = field(default_factory=set)
    _revisions: Counter[str] = field(default_factory=Counter)
    _confirmed: dict[str, int] = field(default_factory=dict)
    _confirmed_at: dict[str, float] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def on(cls, here: InstalledPlace, connected: AbstractAsyncContextManager[ServedPeers]) -> AsyncIterator[Self]:
        async with connected as peers, AsyncExitStack() as stack:
            names = [f"n{number:02}" for number in range(NODES)]
            agents = await peers.agents(names)
            jobs = [await _job(peers, f"job{number:02}", names[number::JOBS]) for number in range(JOBS)]
            for job in jobs:
                for following in (job.follow_orders(), job.follow_directives()):
                    task = asyncio.create_task(following)
                    stack.push_async_callback(asyncio.wait, [task])
                    stack.callback(task.cancel)
            yield cls(here, agents, {job.name: job for job in jobs})

    async def wave(self, source: random.Random) -> list[str]:
        """Withdraws the notices of some jobs and announces some for others, which are returned once all are told."""
        withdrawn, announced = self.draw(source, _WAVE, noticed=True), self.draw(source, _WAVE, noticed=False)
        await self.withdraw(withdrawn)
        await self.announce(announced)
        await self.settled()
        return announced

    async def announce(self, names: Iterable[str]) -> None:
        """Sends a group of notices for each of these jobs, for all of its nodes but the first."""
        for job in map(self.jobs.__getitem__, names):
            await self._change(job, set(job.nodes[1:]) - self.standing, withdrawn=False)

    async def withdraw(self, names: Iterable[str]) -> None:
        for job in map(self.jobs.__getitem__, names):
            await self._change(job, set(job.nodes) & self.standing, withdrawn=True)

    async def _change(self, job: FaultsJob, nodes: set[str], *, withdrawn: bool) -> None:
        job.seen, job.changed_at = len(job.orders), _now()
        self.standing = self.standing - nodes if withdrawn else self.standing | nodes
        for node in sorted(nodes):
            self._revisions[node] += 1
            report = noticed(node, self._revisions[node], withdrawn=withdrawn, left=_LEAD_SECONDS)
            await self.agents[node].say(notice=report)

    async def acknowledged(self) -> None:
        """Returns once every announcement is durable."""
        said = self._revisions
        await asyncio.gather(*(self._last(node, revision) for node, revision in said.items()))

    async def _last(self, node: str, revision: int) -> None:
        if self._confirmed.get(node) != revision:
            await self.agents[node].acknowledged(revision)
            self._confirmed[node], self._confirmed_at[node] = revision, _now()

    async def settled(self) -> None:
        """Returns once every job is told to leave out just the nodes that have a notice."""
        await self.acknowledged()
        await until(lambda: all(job.exclusions == self._expected(job) for job in self.jobs.values()), self._differences)

    async def stored(self) -> None:
        """Checks that the cluster says the same: each job's status, and each notice.

        One without a status was never acknowledged: its second write failed, and then it was withdrawn.
        """
        jobs = {each["metadata"]["name"]: each for each in await self.here.jobs()}
        for job in self.jobs.values():
            status = jobs[f"standalone.{job.name}"]["status"]
            assert set(status["hosts"].get("excluded", ())) == self._expected(job), job.name
        noticed = await self.here.notices()
        active = [each for each in noticed if each.get("status", {}).get("state") == "active"]
        assert sorted(each["spec"]["subject"]["name"] for each in active) == sorted(self.standing)

    def stops(self) -> dict[str, list[dict[str, Any]]]:
        """Returns, by job, what it was told that would end it."""
        return {job.name: job.stops() for job in self.jobs.values() if job.stops()}

    def splits(self, names: Iterable[str]) -> dict[str, list[Sequence[str]]]:
        """Returns the jobs whose last group of notices took more than one change of the list, with these changes.

        A group of which a notice was not durable within the window may take several: on a machine with too much to do
        a write takes longer than that, whatever the fault.
        """
        told = {name: self.jobs[name].changes() for name in names if self._is_durable_in_time(name)}
        return {name: changes for name, changes in told.items() if len(changes) != 1}

    def _is_durable_in_time(self, name: str) -> bool:
        job = self.jobs[name]
        return all(self._confirmed_at[node] - job.changed_at < WINDOW_SECONDS for node in self._expected(job))

    def draw(self, source: random.Random, count: int, *, noticed: bool) -> list[str]:
        """Chooses jobs that have a notice now, or that have none."""
        either = [job.name for job in self.jobs.values() if bool(self._expected(job)) is noticed]
        return source.sample(either, min(count, len(either)))

    def _expected(self, job: FaultsJob) -> set[str]:
        return set(job.nodes) & self.standing

    def _differences(self) -> str:
        wrong = [job for job in self.jobs.values() if job.exclusions != self._expected(job)]
        return "; ".join(f"{job.name} to leave out {self._expected(job)}, not {job.exclusions}" for job in wrong)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _job(peers: ServedPeers, name: str, nodes: Sequence[str]) -> FaultsJob:
    launcher, order = await peers.running(name, list(nodes), min_workers=_MIN_WORKERS)
    rank = await peers.process(order["token"], nodes[0], 0)
    return FaultsJob(name, nodes, launcher, rank.lines, [order])
