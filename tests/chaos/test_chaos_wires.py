"""Both wires fail in every way of `chaos_wire` while reclaims come and go: all concerned are told, and nobody else."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from random import Random

import pytest

from benchmarks.harness.decisions import decisions
from tests.chaos.chaos_fleet import ChaosFleet, ChaosLauncher, ChaosSize, fleet
from tests.chaos.chaos_witness import WITNESS_FILE, WitnessedHold, held
from tests.testkit.waiting import NotYet, until

_BRIEF = ChaosSize(nodes=200, jobs=10, each=5)
_LONG = ChaosSize(nodes=1000, jobs=20, each=8)
_BRIEF_SECONDS, _LONG_SECONDS = 6.0, 40.0
_FAULTS = 1500
"""In each spell of faults."""
_LONG_SEEDS = (1, 2, 3)
_FALSE_ALARMS = 20
_COMMAND = ("tests.chaos.chaos_witness", "supervisor", "serve")
_LOOK_SECONDS = 0.25
_OF_AGENTS = ("_schedule_rpc_coro", "_AgentStream._read_messages")
_OF_CALLS = ("RequestHandler.start", "RequestHandler._handle_request")
"""The supervisor's tasks for each agent, and for each HTTP call."""
_POOLED_THREADS = 6
"""gRPC starts and ends threads as it needs them."""
_MAX_BYTES = 24 * 1024 * 1024
_MAX_OBJECTS = 0.25
"""For each fault: a stream that is kept is a dozen."""


def _params() -> list[object]:
    brief = pytest.param(_BRIEF, _BRIEF_SECONDS, 1, id="brief-1", marks=pytest.mark.brief)
    return [brief, *(pytest.param(_LONG, _LONG_SECONDS, seed, id=f"long-{seed}") for seed in _LONG_SEEDS)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("size", "seconds", "seed"), _params())
async def test_reclaims_come_and_go_through_faulty_wires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: ChaosSize, seconds: float, seed: int
) -> None:
    """Each notice is decided once, all whom it concerns are told and nobody else, and withdrawals leave nothing."""
    observer = tmp_path / "witness"
    monkeypatch.setenv(WITNESS_FILE, str(observer))
    async with fleet(tmp_path, size, _COMMAND) as one:
        await one.start()
        witness = _Witness(one, observer)
        calm = await witness.connected()
        scene = _WireScene(one, Random(seed), seconds)  # noqa: S311 - to be repeated
        await scene.reclaims()
        await scene.withdrawals()
        # By now pools and allocators have grown as far as faults make them.
        grown = await witness.connected(no_more_than=calm)
        await scene.false_alarms()
        # A stream that is just ending is some 60 objects, and one that has begun anew holds a directive of its own.
        after = await witness.connected(no_more_than=calm)
        processes = len(one.received())
        assert after.threads - calm.threads < _POOLED_THREADS
        assert after.objects - grown.objects < _MAX_OBJECTS * _FAULTS + processes
        assert after.resident_bytes - grown.resident_bytes < _MAX_BYTES
        assert one.ended() == []
        faults = await one.internal_faults()
        assert not faults, faults


@dataclass(frozen=True, slots=True)
class _Witness:
    """Looks at what the supervisor of a fleet holds."""

    fleet: ChaosFleet
    file: Path

    async def connected(self, *, no_more_than: WitnessedHold | None = None) -> WitnessedHold:
        """Waits until it serves each peer once, and has no other task and no descriptor more than earlier."""
        agents, calls = len(self.fleet.nodes), self.fleet.calls
        streams = Counter(dict.fromkeys(_OF_AGENTS, agents) | dict.fromkeys(_OF_CALLS, calls))

        async def look() -> WitnessedHold:
            now = await held(self.fleet.one.process.pid, self.file)
            earlier = no_more_than or now
            expected = Counter({**earlier.tasks, **streams})
            more, missing = now.tasks - expected, streams - now.tasks
            descriptors = _beside_streams(now) - _beside_streams(earlier)
            if more or missing or descriptors > 0:
                raise NotYet(more, missing, descriptors)
            return now

        return await until(look, "each peer is served once, and nothing is left over", every=0.5)


def _beside_streams(hold: WitnessedHold) -> int:
    """The descriptors that are not those of streams, of which each has one."""
    return hold.descriptors - hold.tasks[_OF_AGENTS[0]] - hold.tasks[_OF_CALLS[0]]


class _WireScene:
    """Reclaims on the nodes of a fleet while its wires fail."""

    def __init__(self, one: ChaosFleet, random: Random, seconds: float) -> None:
        self._fleet = one
        self._random = random
        self._seconds = seconds
        self._announced: set[str] = set()
        self._ever_announced: set[str] = set()

    async def reclaims(self) -> None:
        """A quarter of each job's hosts are noticed: those that cannot lose any are stopped, the others shrink."""
        chosen = [host for plan in self._fleet.plans for host in plan.hosts[1 : 1 + len(plan.hosts) // 4]]
        self._random.shuffle(chosen)
        async with self._faults():
            for host in chosen:
                self._announce(host)
                await asyncio.sleep(self._seconds / len(chosen))
        await until(self._all_are_told, self._who_is_not)
        await until(self._stopped_jobs_are_suspended, "the jobs are suspended")
        await until(self._each_is_excluded_once, self._exclusions)
        self._check_lines()
        await self._fleet.end_processes([plan.name for plan in self._fleet.plans if not plan.spare])

    async def withdrawals(self) -> None:
        """All notices are withdrawn: every job runs on all its hosts again."""
        async with self._faults():
            await self._withdraw_all(self._seconds)
        await until(self._nothing_is_left, "the supervisor has no notice and no exclusion")
        await until(self._all_are_told, self._who_is_not)
        assert self._each_is_excluded_once()
        self._check_lines()

    async def false_alarms(self) -> None:
        """Notices of jobs that have hosts to spare are withdrawn soon after they came."""
        jobs = [plan for plan in self._fleet.plans if plan.spare]
        chosen = [jobs[number % len(jobs)].hosts[-1 - number // len(jobs)] for number in range(_FALSE_ALARMS)]
        async with self._faults():
            for host in chosen:
                self._announce(host)
                await asyncio.sleep(self._random.uniform(0, self._seconds / 2 / len(chosen)))
            await self._withdraw_all(self._seconds / 2)
        await until(self._nothing_is_left, "the supervisor has no notice and no exclusion")
        await until(self._all_are_told, self._who_is_not)
        self._check_lines()

    async def _withdraw_all(self, seconds: float) -> None:
        pause = seconds / len(self._announced)
        for host in self._random.sample(sorted(self._announced), len(self._announced)):
            await asyncio.sleep(pause)
            self._withdraw(host)

    def _announce(self, host: str) -> None:
        self._announced.add(host)
        self._ever_announced.add(host)
        self._fleet.nodes[host].announce()

    def _withdraw(self, host: str) -> None:
        self._announced.discard(host)
        self._fleet.nodes[host].withdraw()

    @asynccontextmanager
    async def _faults(self) -> AsyncIterator[None]:
        """Faults during the body, while what the supervisor knows is watched."""
        every = self._seconds / _FAULTS
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            async with self._fleet.faults(self._random, self._seconds, every=every):
                yield
            watching.cancel()

    async def _watch(self) -> None:
        """What was acknowledged stands until it is withdrawn, and of a silent agent's sources nothing is known."""
        while True:
            acknowledged = {host for host in self._announced if self._fleet.nodes[host].is_durable}
            status = await self._fleet.status()
            active = {notice["subject"] for notice in status["notices"] if notice["state"] == "active"}
            assert acknowledged & self._announced <= active
            silent = [agent for agent in status["agents"] if not agent["connected"]]
            assert {source["state"] for agent in silent for source in agent["sources"]} <= {"unknown"}
            await asyncio.sleep(_LOOK_SECONDS)

    async def _all_are_told(self) -> bool:
        await self._fleet.look()
        return not self._who_is_not()

    def _who_is_not(self) -> Sequence[object]:
        """The processes whose last line is not what they have to do."""
        received = self._fleet.received()
        return [
            (peer, lines[-1:]) for peer, lines in received.items() if lines[-1].directive != self._wanted(peer.host)
        ]

    def _wanted(self, host: str) -> str:
        if host not in self._announced and self._fleet.plan_of(host).spare:
            return "RUN"
        return "LEAVE" if self._fleet.plan_of(host).spare else "STOP"

    async def _stopped_jobs_are_suspended(self) -> bool:
        tight = {plan.name for plan in self._fleet.plans if not plan.spare}
        jobs = (await self._fleet.status())["jobs"]
        return {job["job"] for job in jobs if job["phase"] == "Suspended"} == tight

    async def _nothing_is_left(self) -> bool:
        status = await self._fleet.status()
        active = [notice for notice in status["notices"] if notice["state"] == "active"]
        changed = [job for job in status["jobs"] if job["phase"] != "Running" or job["exclusions"]]
        return not (active or status["unconfirmed"] or changed)

    def _each_is_excluded_once(self) -> bool:
        return self._exclusions() == Counter(host for host in self._ever_announced if self._fleet.plan_of(host).spare)

    def _exclusions(self) -> Counter[str]:
        """How often each host of a job that shrinks was excluded."""
        launchers = [launcher for launcher in self._fleet.launchers.values() if launcher.plan.spare]
        return sum((launcher.excluded() for launcher in launchers), Counter[str]())

    def _check_lines(self) -> None:
        """Generations do not go back, nobody has ever been told to go without a cause, and each stop is one stop."""
        for peer, lines in self._fleet.received().items():
            assert all(one.generation <= two.generation for one, two in pairwise(lines)), (peer, lines)
            told = {line.directive for line in lines} - {"RUN"}
            assert "LEAVE" not in told or peer.host in self._ever_announced, (peer, lines)
            assert "STOP" not in told or not self._fleet.plan_of(peer.host).spare, (peer, lines)
        for launcher in self._fleet.launchers.values():
            assert all(one.generation <= two.generation for one, two in pairwise(launcher.orders))
            assert launcher.rejections == []
            assert self._stops(launcher) == (not launcher.plan.spare)

    def _stops(self, launcher: ChaosLauncher) -> int:
        """How often the supervisor has decided to stop a job."""
        made = [each.phase for each in decisions(self._fleet.one.log) if each.job == launcher.plan.name]
        return [phase for phase, _ in groupby(made)].count("Stopping")
