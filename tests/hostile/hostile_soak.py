"""`make soak`: honest jobs beside ten hostile tenants, on a real supervisor with a real control plane.

Three phases of equal length in one run: without tenants, with tenants who write as much but nothing odd, and with
hostile ones. The supervisor must not end, no notice may be lost, no process may be told to stop without a reason, and
the 99th percentile from a notice until its process knows of it must stay within a factor of that in the other two
phases. Honest tenants show what is load and not hostility: on a small machine, most of what tenants cost is that the
API server takes longer for a write, which is printed as well.
"""

import argparse
import asyncio
import copy
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness.server import BenchmarkServer
from benchmarks.summary import percentile
from servicekit.kubernetes.server import ApiServer
from simulator.cloud.process import environment, spawn
from simulator.crashes import crashes
from simulator.et_operator.crds import create_crds
from supervisor.jobs.batchjob.kind import BATCHJOB
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from tests.hostile.hostile_fuzz import SMALL_AND_LARGE
from tests.hostile.hostile_objects import (
    ODD,
    as_json,
    honest_event,
    honest_job,
    honest_pod,
    random_odd,
)
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import binaries
from tests.testkit.controlplane.installed import api_server, place
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.serving import AgentPeer, Lines, ServedPeers, launcher_hello, noticed
from tests.testkit.waiting import PATIENCE

TENANTS = 10
RATIO = 1.2
LOST_SECONDS = 30.0
"""After this long without a word of it, a notice counts as lost."""

_NOTICE_PAUSE = 0.2
"""Seconds between the notices of two jobs: five a second come, and five are withdrawn."""

_TENANT_PAUSE = 0.2
"""Seconds between two writes of a tenant: 50 writes a second in all, so that the API server still answers."""

_QUOTA = 10
"""Objects of one kind that a tenant has at once, as a namespace's quota would allow: the oldest are deleted."""

_LEAST_PRIORITY = 19
_OF_PROCESSES = ("step_seconds", "world_size", "checkpoint_seconds", "step", "rank", "host")
_OF_LAUNCHERS = ("min_workers", "max_workers", "max_wait_seconds", "framework", "job")
_PHASES = {"without tenants": None, "with honest tenants": False, "with hostile tenants": True}
"""Whether there are tenants who are hostile; None: there are no tenants."""

_CONFIG_MAPS, _PROBE = "/api/v1/namespaces/default/configmaps", "probe"
_ORDERS = {"trainingjobs": "/apis/kai.alibabacloud.com/v1alpha1", "jobs": "/apis/batch/v1"}


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class SoakPhase:
    """Collects what happens to honest jobs while they get notices.

    Attributes:
        delays: From each notice until its process knew of it, in seconds.
        lost: How many notices it never knew of.
        false: What processes were told that nobody had asked for.
        writes: How long the API server took for a write, in seconds, seen by a client of its own.
        cpu: The share of a core that the supervisor used.
        busy: The share of the machine that was in use; above 90 % or so, delays are those of the machine.
    """

    delays: list[float] = field(default_factory=list)
    lost: int = 0
    false: list[str] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    cpu: float = 0.0
    busy: float = 0.0

    @property
    def p99(self) -> float:
        return percentile(sorted(self.delays), 0.99)


@dataclass(slots=True)
class Honest:
    """A job of two hosts that needs one. Its second host gets a notice again and again, and each is withdrawn."""

    name: str
    agent: AgentPeer
    process: Lines
    obeying: asyncio.Task[None]
    revision: int = 0

    @classmethod
    async def start(cls, peers: ServedPeers, name: str) -> "Honest":
        hosts = [f"{name}-1", f"{name}-2"]
        agents = await peers.agents(hosts)
        bounds = {"min_workers": 1, "max_workers": 2, "requested_workers": 2}
        launcher, order = await peers.running(name, hosts, **bounds)
        obeying = asyncio.create_task(_obey(launcher))
        obeying.add_done_callback(_ended)
        for number, host in enumerate(hosts):
            process = await peers.process(order["token"], host, number)
        assert (await process.lines.any())["directive"] == "RUN"
        return cls(name, agents[hosts[1]], process.lines, obeying)

    async def is_noticed(self, phase: SoakPhase) -> None:
        """One notice, and its withdrawal; what its process is told in between goes into the phase."""
        begun = time.monotonic()
        await self._says(withdrawn=False)
        try:
            async with asyncio.timeout(LOST_SECONDS):
                while (line := await self.process.next()).get("notice") is None:
                    self._judge(line, phase)
                phase.delays.append(time.monotonic() - begun)
                await self.agent.acknowledged(self.revision)
        except TimeoutError:
            phase.lost += 1
            return
        await self._says(withdrawn=True)
        async with asyncio.timeout(PATIENCE):
            while (line := await self.process.next()).get("notice") is not None:
                pass
            await self.agent.acknowledged(self.revision)
        self._judge(line, phase)

    def _judge(self, line: Mapping[str, Any], phase: SoakPhase) -> None:
        if line.get("directive") != "RUN":
            phase.false.append(f"{self.name}: {line}")

    async def _says(self, *, withdrawn: bool) -> None:
        self.revision += 1
        report = noticed(f"{self.name}-2", self.revision, withdrawn=withdrawn, left=300.0)
        await self.agent.say(notice=report)


async def _obey(launcher: Any) -> None:
    """Applies every order of a launcher's stream."""
    while order := await launcher.lines.any():  # With heartbeats: most launchers get no order for minutes.
        if order.get("type") == "order" and order["order"] == "run":
            await launcher.says(run=order["run"], running=True, applied=order["generation"])


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _say(f"a launcher has ended: {error!r}")


async def observe(server: BenchmarkServer, api: Api, jobs: list[Honest], seconds: float) -> SoakPhase:
    """Notices one job after the other."""
    phase, begun = SoakPhase(), time.monotonic()
    cpu, ticks, until = server.usage().cpu_seconds, _ticks(), begun + seconds

    async def keep_noticed(job: Honest, turn: int) -> None:
        await asyncio.sleep(turn * _NOTICE_PAUSE)
        while time.monotonic() < until:
            await job.is_noticed(phase)
            await asyncio.sleep(len(jobs) * _NOTICE_PAUSE)

    async def keep_writing() -> None:
        while time.monotonic() < until:
            started = time.monotonic()
            await api.patch(f"{_CONFIG_MAPS}/{_PROBE}", {"data": {"at": str(started)}})
            phase.writes.append(time.monotonic() - started)
            await asyncio.sleep(_NOTICE_PAUSE)

    async with asyncio.TaskGroup() as group:
        group.create_task(keep_writing())
        for turn, job in enumerate(jobs):
            group.create_task(keep_noticed(job, turn))
    phase.cpu = (server.usage().cpu_seconds - cpu) / (time.monotonic() - begun)
    idle, total = (after - before for before, after in zip(ticks, _ticks(), strict=True))
    phase.busy = 1.0 - idle / total
    return phase


def _ticks() -> tuple[int, int]:
    """Returns for how many ticks the machine's cores were idle so far, and how many there were."""
    ticks = [int(each) for each in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


@asynccontextmanager
async def tenants(root: Path, target: Mapping[str, Any], *, hostile: bool | None) -> AsyncIterator[None]:
    """Runs ten tenants while the context lasts; with None it runs nobody.

    They have a process of their own, so that their work does not delay the clients of honest jobs.
    """
    if hostile is None:
        yield
        return
    settings = root / "target.json"
    settings.write_text(json.dumps({**target, "hostile": hostile}), encoding="utf-8")
    child = spawn(
        "tenants",
        [sys.executable, "-m", "tests.hostile.hostile_soak", "--write", str(settings)],
        environment(root, {}),
        root / "tenants.log",
    )
    try:
        yield
        child.check()
        _say(f"the tenants' writes: {child.tail().splitlines()[-1]}")
    finally:
        await child.stop()


async def write(target: Mapping[str, Any]) -> None:
    """The process of the tenants: writes until it is ended, and prints how its writes were answered."""
    # Their machines are others: they take what of this one nobody else needs.
    os.nice(_LEAST_PRIORITY)
    answers: Counter[str] = Counter()
    with suppress(asyncio.CancelledError):
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session,
            asyncio.TaskGroup() as group,
        ):
            for number in range(TENANTS):
                group.create_task(_SoakTenant(session, target, number, answers).write())
            group.create_task(__say(answers))


async def __say(answers: Counter[str]) -> None:
    while True:
        await asyncio.sleep(5.0)
        _say(json.dumps(dict(sorted(answers.items()))))


class _SoakTenant:
    """Writes objects into its namespace, and messages about its own stand-alone job; odd ones if it is hostile."""

    def __init__(
        self, session: aiohttp.ClientSession, target: Mapping[str, Any], number: int, answers: Counter[str]
    ) -> None:
        self._session = session
        self._target = target
        self._chance = random.Random(target["seed"] * TENANTS + number)  # noqa: S311 - repeatable, not secret
        self._namespace = f"tenant-{number}"
        self._number = number
        self._hostile = target["hostile"]
        self._count = 0
        self._answers = answers
        self._made: defaultdict[str, deque[str]] = defaultdict(deque)

    async def write(self) -> None:
        while True:
            for path, data, token in self._next():
                await self._send("PATCH" if path.endswith("/status") else "POST", path, data, token)
                await asyncio.sleep(_TENANT_PAUSE)

    def _next(self) -> Iterator[tuple[str, bytes, str]]:
        """Yield an object of each kind, and a message of each kind of peer."""
        self._count += 1
        name = f"{'odd' if self._hostile else 'plain'}-{self._count}"
        api, admin = self._target["api"], self._target["admin"]
        for kind in (TRAININGJOB, BATCHJOB):
            path = f"{api}{_ORDERS[kind.resource.plural]}/namespaces/{self._namespace}/{kind.resource.plural}"
            yield path, self._written({**honest_job(kind)}, name), admin
            pod = {**honest_pod(kind, self._count), "apiVersion": "v1", "kind": "Pod"}
            pods, pod_name = f"{api}/api/v1/namespaces/{self._namespace}/pods", f"pod-{name}-{kind.name}"
            yield pods, self._written(pod, pod_name), admin
            yield f"{pods}/{pod_name}/status", as_json({"status": self._changed(pod)["status"]}), admin
        event = self._event()
        yield f"{api}/api/v1/namespaces/{self._namespace}/events", self._written(event, name), admin
        process = {"process": name, "host": f"hostile-{self._number}", "rank": 0, "pid": 1, "agrees": ["stop"]}
        odd = {name: self._value() for name in self._chosen(_OF_PROCESSES)}
        report = {
            **process,
            "generation": 1,
            "run": 1,
            "kind": self._chance.choice(["saved", "left", "rank", "agreement"]),
        }
        http = self._target["http"]
        yield f"{http}/v1/processes/stream", as_json({**process, **odd}), self._target["processes"][self._number]
        yield f"{http}/v1/processes/report", as_json({**report, **odd}), self._target["processes"][self._number]
        # Of its jobs there are no more than of its objects: a hello for one that is known goes on with it.
        job = f"tenant-{self._number}-{self._count % _QUOTA}"
        launcher = launcher_hello(job, [f"hostile-{self._number}"])
        launcher |= {name: self._value() for name in self._chosen(_OF_LAUNCHERS)}
        yield f"{http}/v1/launchers/stream", as_json(launcher), self._target["launcher"]

    def _event(self) -> dict[str, Any]:
        """An Event about a pod of the tenant's, as kubelets write them: the API server asks newer ones for more."""
        event = honest_event()
        legacy = {name: event[name] for name in ("metadata", "reason", "message", "firstTimestamp", "lastTimestamp")}
        involved = {**event["involvedObject"], "namespace": self._namespace}
        return {"apiVersion": "v1", "kind": "Event", **legacy, "involvedObject": involved}

    def _chosen(self, names: Sequence[str]) -> list[str]:
        return [self._chance.choice(names)] if self._hostile else []

    def _value(self) -> Any:
        return self._chance.choice([*SMALL_AND_LARGE, *ODD])

    def _changed(self, honest: dict[str, Any]) -> dict[str, Any]:
        return random_odd(self._chance, honest) if self._hostile else copy.deepcopy(honest)

    def _written(self, honest: dict[str, Any], name: str) -> bytes:
        changed = self._changed(honest)
        if isinstance(changed.get("metadata"), dict):
            for dropped in ("uid", "resourceVersion", "creationTimestamp"):
                changed["metadata"].pop(dropped, None)
            changed["metadata"] |= {"name": name, "namespace": self._namespace}
        return as_json(changed)

    async def _send(self, method: str, url: str, data: bytes, token: str) -> None:
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": f"application/{kind}"}
        what = "/".join(url.split("/")[-2:]) if "/v1/p" in url or "/v1/l" in url else url.rpartition("/")[2]
        try:
            async with self._session.request(method, url, data=data, headers=headers, ssl=False) as answer:
                self._answers[f"{what} {answer.status}"] += 1
                if answer.status == HTTPStatus.CREATED:
                    await self._keep_quota(url, json.loads(await answer.read())["metadata"]["name"])
        except (aiohttp.ClientError, TimeoutError) as error:
            self._answers[f"{what} {type(error).__name__}"] += 1

    async def _keep_quota(self, url: str, name: str) -> None:
        made = self._made[url]
        made.append(name)
        if len(made) > _QUOTA:
            headers = {"Authorization": f"Bearer {self._target['admin']}"}
            at_once = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
            oldest = f"{url}/{made.popleft()}"
            async with self._session.delete(oldest, headers=headers, json=at_once, ssl=False) as answer:
                self._answers[f"deleted {answer.status}"] += 1


@dataclass(frozen=True, slots=True)
class Length:
    """How much is run: the number of honest jobs, the minutes of all phases together, and the seed of the tenants."""

    jobs: int
    minutes: float
    seed: int


async def soak(length: Length) -> int:
    """Run all phases and print what was seen. Returns the exit code."""
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    _say(f"Logs are kept in {root}")
    with api_server(binaries(), root / "controlplane") as plane:
        async with place(plane) as here:
            await _define(str(plane.cluster.kubeconfig))
            await here.api.create(_CONFIG_MAPS, {"metadata": {"name": _PROBE}})
            for number in range(TENANTS):
                namespace = f"tenant-{number}"
                await here.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
                path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
                await here.api.create(path, {"metadata": {"name": "default"}})
            server = BenchmarkServer(
                root / "server",
                tls=False,
                settings={"JOB_SUPERVISOR_STORE": "kubernetes", "KUBECONFIG": str(here.kubeconfig)},
            )
            await server.start()
            try:
                return await _phases(root, server, here.api, plane.cluster, length)
            finally:
                await server.stop()


async def _define(kubeconfig: str) -> None:
    api = await ApiServer.connect(kubeconfig, 10.0)
    try:
        await create_crds(api)
    finally:
        await api.close()


async def _phases(root: Path, server: BenchmarkServer, api: Api, cluster: RunningCluster, length: Length) -> int:
    async with ServedPeers.of(server.tokens, asdict(server.endpoints)) as peers:
        honest = [await Honest.start(peers, f"honest-{number}") for number in range(length.jobs)]
        processes = []
        for number in range(TENANTS):
            host = f"hostile-{number}"
            await peers.agent(host)
            _, order = await peers.running(host, [host])
            processes.append(order["token"])
        _say(f"{length.jobs} honest jobs run")
        seconds = length.minutes * 60.0 / len(_PHASES)
        target = {
            "api": cluster.url,
            "admin": cluster.token,
            "http": server.endpoints.http,
            "processes": processes,
            "launcher": peers.tokens.launcher("tenant"),
            "seed": length.seed,
        }
        phases = []
        for name, hostile in _PHASES.items():
            async with tenants(root, target, hostile=hostile):
                phases.append(await observe(server, api, honest, seconds))
            _show(name, phases[-1])
        for job in honest:
            job.obeying.cancel()
    return _conclude(server, *phases)


def _show(name: str, phase: SoakPhase) -> None:
    _say(
        f"{name}: {len(phase.delays)} notices, p50 {percentile(sorted(phase.delays), 0.5) * 1000:.0f} ms,"
        f" p99 {phase.p99 * 1000:.0f} ms, {phase.lost} lost, {len(phase.false)} false stops;"
        f" a write to the API server p99 {percentile(sorted(phase.writes), 0.99) * 1000:.0f} ms;"
        f" supervisor {phase.cpu:.0%} of a core, machine {phase.busy:.0%} busy",
    )


def _conclude(server: BenchmarkServer, quiet: SoakPhase, honest: SoakPhase, hostile: SoakPhase) -> int:
    server.usage()  # It raises if the process has ended; nothing starts it again.
    beside_honest, alone = hostile.p99 / honest.p99, hostile.p99 / quiet.p99
    _say(f"p99 with hostile tenants / with honest ones: {beside_honest:.2f} (at most {RATIO})")
    _say(f"p99 with hostile tenants / without tenants: {alone:.2f} (at most {RATIO})")
    errors = Counter(crashes(server.log.parent))
    for error, count in errors.most_common(10):
        _say(f"logged {count} times: {error[:200]}")
    phases = (quiet, honest, hostile)
    wrong = [false for phase in phases for false in phase.false]
    wrong += ["a notice was lost"] * sum(phase.lost for phase in phases)
    if max(beside_honest, alone) > RATIO:
        wrong.append("hostile tenants delay others")
    if errors:
        wrong.append("an error that nobody foresaw")
    for each in wrong[:10]:
        _say(f"FAILED: {each}")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="length of all phases together (default: 20)")
    parser.add_argument("--jobs", type=int, default=200, help="honest jobs (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the tenants' writes")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write is not None:
        asyncio.run(write(json.loads(options.write.read_bytes())))
        return 0
    return asyncio.run(soak(Length(options.jobs, options.minutes, options.seed)))


if __name__ == "__main__":
    sys.exit(main())
