"""`make soak`: honest jobs beside ten hostile tenants, on a real supervisor with a real control plane.

Two phases of equal length in one run: without and with the tenants, who write odd objects and messages. The supervisor
must not end, no notice may be lost, no process may be told to stop without a reason, and the 99th percentile from a
notice until its process knows of it must stay within a factor of the quiet phase.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness.server import Server
from benchmarks.summary import percentile
from servicekit.kubernetes.server import ApiServer
from simulator.cloud.process import Child, environment, spawn
from simulator.crashes import crashes
from simulator.et_operator.crds import create_crds
from supervisor.jobs.batchjob.kind import BatchJobKind
from supervisor.jobs.trainingjob.kind import TrainingJobKind
from tests.hostile.hostile_fuzz import SMALL_AND_LARGE
from tests.hostile.hostile_objects import (
    ODD,
    as_json,
    honest_event,
    honest_job,
    honest_pod,
    random_odd,
)
from tests.testkit.controlplane.binaries import binaries
from tests.testkit.controlplane.installed import api_server, place
from tests.testkit.controlplane.running import Cluster
from tests.testkit.serving import AgentPeer, Lines, Peers, launcher_hello
from tests.testkit.waiting import PATIENCE

TENANTS = 10
RATIO = 1.2
LOST_SECONDS = 30.0
"""After this long without a word of it, a notice counts as lost."""

_TENANT_PAUSE = 0.2
"""Seconds between two writes of a tenant: 50 writes a second in all, so that the API server still answers."""

_ORDERS = {"trainingjobs": "/apis/kai.alibabacloud.com/v1alpha1", "jobs": "/apis/batch/v1"}


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Phase:
    """What was seen while honest jobs got notices."""

    delays: list[float] = field(default_factory=list)
    lost: int = 0
    false: list[str] = field(default_factory=list)

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
    async def start(cls, peers: Peers, name: str) -> "Honest":
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

    async def is_noticed(self, phase: Phase) -> None:
        """One notice, and its withdrawal; what its process is told in between goes into the phase."""
        begun = time.monotonic()
        await self._says(withdrawn=False)
        try:
            async with asyncio.timeout(LOST_SECONDS):
                while (line := await self.process.next()).get("notice") is None:
                    self._judge(line, phase)
        except TimeoutError:
            phase.lost += 1
            return
        phase.delays.append(time.monotonic() - begun)
        await self._says(withdrawn=True)
        async with asyncio.timeout(PATIENCE):
            while (line := await self.process.next()).get("notice") is not None:
                pass
        self._judge(line, phase)

    def _judge(self, line: Mapping[str, Any], phase: Phase) -> None:
        if line.get("directive") != "RUN":
            phase.false.append(f"{self.name}: {line}")

    async def _says(self, *, withdrawn: bool) -> None:
        self.revision += 1
        host = f"{self.name}-2"
        await self.agent.notices(host, revision=self.revision, withdrawn=withdrawn, left=300.0)


async def _obey(launcher: Any) -> None:
    """Applies every order of a launcher's stream."""
    while order := await launcher.lines.any():  # With heartbeats: most launchers get no order for minutes.
        if order.get("type") == "order" and order["order"] == "run":
            await launcher.says(run=order["run"], running=True, applied=order["generation"])


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _say(f"a launcher has ended: {error!r}")


async def observe(jobs: list[Honest], seconds: float) -> Phase:
    """Notices one job after the other, each every few seconds."""
    phase, until = Phase(), time.monotonic() + seconds

    async def keep_noticed(job: Honest, turn: int) -> None:
        await asyncio.sleep(turn * 0.05)
        while time.monotonic() < until:
            await job.is_noticed(phase)
            await asyncio.sleep(len(jobs) * 0.05)

    async with asyncio.TaskGroup() as group:
        for turn, job in enumerate(jobs):
            group.create_task(keep_noticed(job, turn))
    return phase


@asynccontextmanager
async def tenants(root: Path, target: Mapping[str, Any], seed: int) -> AsyncIterator[Child]:
    """Ten hostile tenants in a process of their own, so that their work does not delay the clients of honest jobs."""
    settings = root / "target.json"
    settings.write_text(json.dumps({**target, "seed": seed}), encoding="utf-8")
    child = spawn(
        "tenants",
        [sys.executable, "-m", "tests.hostile.hostile_soak", "--write", str(settings)],
        environment(root, {}),
        root / "tenants.log",
    )
    try:
        yield child
    finally:
        await child.stop()


async def write(target: Mapping[str, Any]) -> None:
    """The process of the tenants: writes until it is ended, and prints how its writes were answered."""
    answers: Counter[str] = Counter()
    with suppress(asyncio.CancelledError):
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session,
            asyncio.TaskGroup() as group,
        ):
            for number in range(TENANTS):
                group.create_task(_Tenant(session, target, number, answers).write())
            group.create_task(__say(answers))


async def __say(answers: Counter[str]) -> None:
    while True:
        await asyncio.sleep(5.0)
        _say(json.dumps(dict(sorted(answers.items()))))


class _Tenant:
    """Writes odd objects into its namespace, and odd messages about its own stand-alone job."""

    def __init__(
        self, session: aiohttp.ClientSession, target: Mapping[str, Any], number: int, answers: Counter[str]
    ) -> None:
        self._session = session
        self._target = target
        self._chance = random.Random(target["seed"] * TENANTS + number)  # noqa: S311 - repeatable, not secret
        self._namespace = f"tenant-{number}"
        self._number = number
        self._count = 0
        self._answers = answers

    async def write(self) -> None:
        while True:
            for path, data, token in self._next():
                await self._post(path, data, token)
                await asyncio.sleep(_TENANT_PAUSE)

    def _next(self) -> Iterator[tuple[str, bytes, str]]:
        """Yield an object of each kind, and a message of each kind of peer."""
        self._count += 1
        name = f"odd-{self._count}"
        api, admin = self._target["api"], self._target["admin"]
        for kind in (TrainingJobKind(), BatchJobKind()):
            path = f"{api}{_ORDERS[kind.resource.plural]}/namespaces/{self._namespace}/{kind.resource.plural}"
            yield path, self._odd({**honest_job(kind)}, name), admin
            pod = {**honest_pod(kind, self._count), "apiVersion": "v1", "kind": "Pod"}
            pods, pod_name = f"{api}/api/v1/namespaces/{self._namespace}/pods", f"pod-{name}-{kind.name}"
            yield pods, self._odd(pod, pod_name), admin
            yield f"{pods}/{pod_name}/status", as_json({"status": random_odd(self._chance, pod)["status"]}), admin
        event = self._event()
        yield f"{api}/api/v1/namespaces/{self._namespace}/events", self._odd(event, name), admin
        process = {"process": name, "host": f"hostile-{self._number}", "rank": 0, "pid": 1, "agrees": ["stop"]}
        odd = self._chance.choice(["step_seconds", "world_size", "checkpoint_seconds", "step", "rank", "host"])
        value = self._chance.choice([*SMALL_AND_LARGE, *ODD])
        report = {
            **process,
            "generation": 1,
            "run": 1,
            "kind": self._chance.choice(["saved", "left", "rank", "agreement"]),
        }
        http = self._target["http"]
        yield f"{http}/v1/processes/stream", as_json({**process, odd: value}), self._target["processes"][self._number]
        yield f"{http}/v1/processes/report", as_json({**report, odd: value}), self._target["processes"][self._number]
        launcher = launcher_hello(name, [f"hostile-{self._number}"])
        launcher[self._chance.choice(["min_workers", "max_workers", "max_wait_seconds", "framework", "job"])] = value
        yield f"{http}/v1/launchers/stream", as_json(launcher), self._target["launcher"]

    def _event(self) -> dict[str, Any]:
        """An Event about a pod of the tenant's, as kubelets write them: the API server asks newer ones for more."""
        event = honest_event()
        legacy = {name: event[name] for name in ("metadata", "reason", "message", "firstTimestamp", "lastTimestamp")}
        involved = {**event["involvedObject"], "namespace": self._namespace}
        return {"apiVersion": "v1", "kind": "Event", **legacy, "involvedObject": involved}

    def _odd(self, honest: dict[str, Any], name: str) -> bytes:
        changed = random_odd(self._chance, honest)
        if isinstance(changed.get("metadata"), dict):
            for dropped in ("uid", "resourceVersion", "creationTimestamp"):
                changed["metadata"].pop(dropped, None)
            changed["metadata"] |= {"name": name, "namespace": self._namespace}
        return as_json(changed)

    async def _post(self, url: str, data: bytes, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        what = "/".join(url.split("/")[-2:]) if "/v1/p" in url or "/v1/l" in url else url.rpartition("/")[2]
        try:
            changes = url.endswith("/status")
            headers |= {"Content-Type": "application/merge-patch+json"} if changes else {}
            method = "PATCH" if changes else "POST"
            async with self._session.request(method, url, data=data, headers=headers, ssl=False) as answer:
                self._answers[f"{what} {answer.status}"] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            self._answers[f"{what} {type(error).__name__}"] += 1


@dataclass(frozen=True, slots=True)
class Length:
    """How much is run: the number of honest jobs, the minutes of both phases together, and the seed of the tenants."""

    jobs: int
    minutes: float
    seed: int


async def soak(length: Length) -> int:
    """Run both phases and print what was seen. Returns the exit code."""
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    _say(f"Logs are kept in {root}")
    with api_server(binaries(), root / "controlplane") as plane:
        async with place(plane) as here:
            await _define(str(plane.cluster.kubeconfig))
            for number in range(TENANTS):
                namespace = f"tenant-{number}"
                await here.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
                path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
                await here.api.create(path, {"metadata": {"name": "default"}})
            server = Server(
                root / "server",
                tls=False,
                settings={"JOB_SUPERVISOR_STORE": "kubernetes", "KUBECONFIG": str(here.kubeconfig)},
            )
            await server.start()
            try:
                return await _phases(root, server, plane.cluster, length)
            finally:
                await server.stop()


async def _define(kubeconfig: str) -> None:
    api = await ApiServer.connect(kubeconfig, 10.0)
    try:
        await create_crds(api)
    finally:
        await api.close()


async def _phases(root: Path, server: Server, cluster: Cluster, length: Length) -> int:
    async with Peers.of(server.tokens, asdict(server.endpoints)) as peers:
        honest = [await Honest.start(peers, f"honest-{number}") for number in range(length.jobs)]
        processes = []
        for number in range(TENANTS):
            host = f"hostile-{number}"
            await peers.agent(host)
            _, order = await peers.running(host, [host])
            processes.append(order["token"])
        _say(f"{length.jobs} honest jobs run")
        quiet = await observe(honest, length.minutes * 30.0)
        _show("without tenants", quiet)
        target = {"api": cluster.url, "admin": cluster.token, "http": server.endpoints.http, "processes": processes}
        async with tenants(root, {**target, "launcher": peers.tokens.launcher("tenant")}, length.seed) as child:
            hostile = await observe(honest, length.minutes * 30.0)
            child.check()
            _say(f"the tenants' writes: {child.tail().splitlines()[-1]}")
        _show("with tenants", hostile)
        for job in honest:
            job.obeying.cancel()
    return _conclude(server, quiet, hostile)


def _show(name: str, phase: Phase) -> None:
    _say(
        f"{name}: {len(phase.delays)} notices, p50 {percentile(sorted(phase.delays), 0.5) * 1000:.0f} ms,"
        f" p99 {phase.p99 * 1000:.0f} ms, {phase.lost} lost, {len(phase.false)} false stops",
    )


def _conclude(server: Server, quiet: Phase, hostile: Phase) -> int:
    server.usage()  # It raises if the process has ended; nothing starts it again.
    ratio = hostile.p99 / quiet.p99
    _say(f"p99 with tenants / without: {ratio:.2f} (at most {RATIO})")
    errors = Counter(crashes(server.log.parent))
    for error, count in errors.most_common(10):
        _say(f"logged {count} times: {error[:200]}")
    wrong = [*quiet.false, *hostile.false, *(["a notice was lost"] if quiet.lost or hostile.lost else [])]
    if ratio > RATIO:
        wrong.append("the tenants delay others")
    if errors:
        wrong.append("an error that nobody foresaw")
    for each in wrong[:10]:
        _say(f"FAILED: {each}")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="length of both phases together (default: 20)")
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
