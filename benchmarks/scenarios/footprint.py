"""Import time, memory, CPU and wake-ups of idle agent, server and SDK."""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.quiet_cluster import quiet_cluster
from benchmarks.machine import Usage, usage, wake_ups
from benchmarks.results import Figure, ResultTarget, Row, ScenarioOutcome, Unit
from simulator.cloud.trace import Node
from simulator.harness import ReplayWorld, ServiceSettings, world

_AGENT_MEMORY = ResultTarget(
    at_most=48 * 1024 * 1024,
    why="gRPC's C library takes 11 MiB of it, which a client in Python would save, and most of the wake-ups. "
    "See docs/adr/0057-the-agent-keeps-grpcs-c-library.md.",
)
_AGENT_CPU = ResultTarget(at_most=0.003)
_ALONE, _CLUSTERED = Node("node-1"), Node("node-2")
_SETTLE_SECONDS = 3.0

METHOD = """\
*Import* is the median of alternating starts of Python with and without the import. Agents and supervisor are real,
connected to each other with TLS, and run as in their images: with compiled bytecode and, for agents, without the
system's CAs and without Rich, which only a checkout has. An agent polls a metadata server
over HTTP once a second; on a cluster it also serves probes and metrics, and watches its node and 30 pods through an API
server that only lists them. Memory is resident and includes that of Python, which the last row shows. *Wake-ups* are
voluntary context switches of all threads; most are those of gRPC's idle threads, which grow with the number of cores.

For comparison, requests and limits with which similar programs are installed:
[aws-node-termination-handler][nth] requests 64 MiB and 5 % of a core (limits: 128 MiB, 10 %), GKE's
[node-termination-handler][gke] is limited to 30 MiB and 15 %, and [node-problem-detector][npd] to 80 MiB and 1 %. The
supervisor that the original `kubeai` belongs to requests 300 MiB and 10 % (limits: 500 MiB, 30 %).

[nth]: https://github.com/aws/aws-node-termination-handler/blob/v1.13.3/config/helm/aws-node-termination-handler/values.yaml
[gke]: https://github.com/GoogleCloudPlatform/k8s-node-termination-handler/blob/master/deploy/k8s.yaml
[npd]: https://github.com/kubernetes/node-problem-detector/blob/master/deployment/node-problem-detector.yaml"""

_LISTENING = """
import sys, kubeai.elastic
kubeai.elastic.init()
print("ready", flush=True)
sys.stdin.read()
"""
_BARE = """
import sys
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class _Idle:
    """What a process used while nothing happened."""

    resident_bytes: int
    cores: float
    wake_ups: float


@dataclass(frozen=True, slots=True)
class _Sample:
    """The counters of a process at an instant."""

    at: float
    usage: Usage
    wake_ups: int

    @classmethod
    def take(cls, pid: int) -> "_Sample":
        return cls(time.monotonic(), usage(pid), wake_ups(pid))

    def since(self, before: "_Sample") -> _Idle:
        seconds = self.at - before.at
        return _Idle(
            resident_bytes=self.usage.resident_bytes,
            cores=(self.usage.cpu_seconds - before.usage.cpu_seconds) / seconds,
            wake_ups=(self.wake_ups - before.wake_ups) / seconds,
        )


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    """Measure all three, and Python without them."""
    rounds, seconds = (3, 3.0) if short else (15, 30.0)
    env = _compiled(root)
    agent = {**env, **_as_in_the_agents_image(root)}
    imports = {
        "agent": await _import("node_agent.__main__, node_agent.app", rounds, agent),
        "supervisor": await _import("supervisor.__main__, supervisor.wiring.app", rounds, env),
        "sdk": await _import("kubeai.elastic", rounds, env),
    }
    alone, clustered, server = await _services(root, seconds, ServiceSettings(supervisor=env, agents=agent))
    rows = (
        Row(case="agent, stand-alone", figures=(imports["agent"], *_idle(alone, _AGENT_MEMORY, _AGENT_CPU))),
        Row(case="agent, on a cluster", figures=(imports["agent"], *_idle(clustered, _AGENT_MEMORY, _AGENT_CPU))),
        Row(case="supervisor, 2 agents", figures=(imports["supervisor"], *_idle(server))),
        Row(
            case="SDK in a bare Python",
            figures=(imports["sdk"], _resident(await _script_bytes(_LISTENING, root, env))),
        ),
        Row(case="Python alone", figures=(_resident(await _script_bytes(_BARE, root, env)),)),
    )
    return ScenarioOutcome(scenario="footprint", title="At rest", method=METHOD, rows=rows)


def _compiled(root: Path) -> Mapping[str, str]:
    """Return the variables for compiled bytecode: to compile a module takes memory that the process keeps."""
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(root / "bytecode")}


def _as_in_the_agents_image(root: Path) -> Mapping[str, str]:
    """Return the variables of its Dockerfile, and those that hide Rich: structlog imports it wherever it is."""
    hidden = root / "hidden"
    hidden.mkdir()
    (hidden / "rich.py").write_text("raise ImportError\n", encoding="ascii")
    return {"SSL_CERT_FILE": os.devnull, "PYTHONPATH": str(hidden)}


async def _services(root: Path, seconds: float, settings: ServiceSettings) -> list[_Idle]:
    """Measure an agent without a cluster, one with a cluster, and their supervisor, all at once."""
    async with (
        quiet_cluster(root / "account", _CLUSTERED) as cluster,
        world(root / "world", [_ALONE, _CLUSTERED], tls=True, settings=settings) as w,
    ):
        # The second start of an agent finds the bytecode of all that it imports late.
        await _restart(w, _CLUSTERED, _with_servers(cluster))
        await _restart(w, _ALONE, {})
        await _restart(w, _CLUSTERED, _with_servers(cluster))
        await asyncio.sleep(_SETTLE_SECONDS)
        pids = [w.nodes.agent(_ALONE).pid, w.nodes.agent(_CLUSTERED).pid, w.supervisor.child.pid]
        before = [_Sample.take(pid) for pid in pids]
        await asyncio.sleep(seconds)
        return [_Sample.take(pid).since(sample) for pid, sample in zip(pids, before, strict=True)]


def _with_servers(cluster: Mapping[str, str]) -> Mapping[str, str]:
    return {
        **cluster,
        "NODE_AGENT_PROBE_ADDRESS": "127.0.0.1:0",
        "NODE_AGENT_METRICS_ADDRESS": "127.0.0.1:0",
    }


async def _restart(w: ReplayWorld, node: Node, settings: Mapping[str, str]) -> None:
    await w.nodes.agent(node).stop()
    await w.until(lambda status: node not in status.connected(), f"the agent of {node} to be gone")
    w.nodes.start_agent(node, settings)
    await w.until(lambda status: node in status.connected(), f"the agent of {node} to be connected")


def _idle(idle: _Idle, memory: ResultTarget | None = None, cpu: ResultTarget | None = None) -> tuple[Figure, ...]:
    return (
        _resident(idle.resident_bytes, memory),
        Figure(label="idle CPU", value=idle.cores, unit=Unit.CORES, target=cpu),
        Figure(label="wake-ups a second", value=idle.wake_ups, unit=Unit.COUNT),
    )


def _resident(value: float, target: ResultTarget | None = None) -> Figure:
    return Figure(label="resident", value=value, unit=Unit.BYTES, target=target)


async def _import(modules: str, rounds: int, env: Mapping[str, str]) -> Figure:
    """Measure an import. The first one compiles and does not count."""
    code = f"import {modules}"
    await _seconds(code, env)
    times: dict[str, list[float]] = {code: [], "pass": []}
    for _ in range(rounds):
        for statement, taken in times.items():
            taken.append(await _seconds(statement, env))
    value = statistics.median(times[code]) - statistics.median(times["pass"])
    return Figure(label="import", value=value, unit=Unit.SECONDS)


async def _seconds(code: str, env: Mapping[str, str]) -> float:
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env={**os.environ, **env})
    await process.wait()
    return time.monotonic() - began


async def _script_bytes(code: str, directory: Path, env: Mapping[str, str]) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **env, "KUBEAI_DIR": str(directory)},
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("it was started with pipes")
    await process.stdout.readline()
    found = usage(process.pid).resident_bytes
    process.stdin.close()
    await process.wait()
    return found
