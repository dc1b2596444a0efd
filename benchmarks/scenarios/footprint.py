"""Import time, memory and CPU of idle agent, server and SDK."""

import asyncio
import os
import statistics
import sys
import time
from pathlib import Path

from benchmarks.machine import usage
from benchmarks.results import Figure, Outcome, Row, Target, Unit
from simulator.cloud.trace import Node
from simulator.harness import world

_AGENT_BYTES = 96 * 1024 * 1024
_AGENT_CORES = 0.01
_NODE = Node("node-1")
_SETTLE_SECONDS = 3.0

METHOD = """\
*Import* is the median of alternating starts of Python with and without the import. Agent and supervisor are real and
connected to each other. The agent polls a metadata server over HTTP once a second. Memory is resident and includes
that of Python, which the last row shows."""

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


async def run(root: Path, *, short: bool) -> Outcome:
    """Measure all three, and Python without them."""
    rounds, seconds = (3, 3.0) if short else (15, 30.0)
    async with world(root / "world", [_NODE]) as w:
        await asyncio.sleep(_SETTLE_SECONDS)
        agent, server = w.nodes.agent(_NODE).pid, w.supervisor.child.pid
        before, began = (usage(agent), usage(server)), time.monotonic()
        await asyncio.sleep(seconds)
        after, passed = (usage(agent), usage(server)), time.monotonic() - began
    cores = [(b.cpu_seconds - a.cpu_seconds) / passed for a, b in zip(before, after, strict=True)]
    rows = (
        Row(
            case="agent",
            figures=(
                await _import("node_agent.__main__", "node_agent.app", rounds),
                _resident(after[0].resident_bytes, Target(at_most=_AGENT_BYTES)),
                Figure(label="idle CPU", value=cores[0], unit=Unit.CORES, target=Target(at_most=_AGENT_CORES)),
            ),
        ),
        Row(
            case="supervisor, 1 agent",
            figures=(
                await _import("supervisor.__main__", "supervisor.wiring.app", rounds),
                _resident(after[1].resident_bytes),
                Figure(label="idle CPU", value=cores[1], unit=Unit.CORES),
            ),
        ),
        Row(
            case="SDK in a bare Python",
            figures=(
                await _import("kubeai.elastic", "", rounds),
                _resident(await _script_bytes(_LISTENING, root)),
            ),
        ),
        Row(case="Python alone", figures=(_resident(await _script_bytes(_BARE, root)),)),
    )
    return Outcome(scenario="footprint", title="At rest", method=METHOD, rows=rows)


def _resident(value: float, target: Target | None = None) -> Figure:
    return Figure(label="resident", value=value, unit=Unit.BYTES, target=target)


async def _import(first: str, second: str, rounds: int) -> Figure:
    """Measure an import. Modules that are imported late are named as well."""
    code = f"import {first}" + (f", {second}" if second else "")
    times: dict[str, list[float]] = {code: [], "pass": []}
    for _ in range(rounds):
        for statement, taken in times.items():
            taken.append(await _seconds(statement))
    value = statistics.median(times[code]) - statistics.median(times["pass"])
    return Figure(label="import", value=value, unit=Unit.SECONDS)


async def _seconds(code: str) -> float:
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await process.wait()
    return time.monotonic() - began


async def _script_bytes(code: str, directory: Path) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "KUBEAI_DIR": str(directory)},
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("it was started with pipes")
    await process.stdout.readline()
    found = usage(process.pid).resident_bytes
    process.stdin.close()
    await process.wait()
    return found
