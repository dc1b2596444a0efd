"""A real agent process, its log, and the answers of its probes."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.testkit.waiting import until

MEBIBYTE = 1024 * 1024


@dataclass
class AgentProcess:
    process: asyncio.subprocess.Process
    lines: list[dict[str, Any]]
    raw: list[str]

    def event(self, name: str) -> dict[str, Any] | None:
        return next((line for line in self.lines if line["event"] == name), None)

    def count(self, name: str, dependency: str) -> int:
        return sum((line["event"], line.get("dependency")) == (name, dependency) for line in self.lines)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        before = time.monotonic()
        self.process.send_signal(number)
        async with asyncio.timeout(30):
            await self.process.wait()
        return time.monotonic() - before

    @property
    def resident(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def wake_ups(self) -> int:
        """How often the main thread has gone to sleep."""
        status = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@asynccontextmanager
async def agent(
    environ: Mapping[str, str],
    module: Sequence[str] = ("node_agent",),
    *,
    program: Sequence[str] = (),
    wrapper: Sequence[str] = (sys.executable,),
) -> AsyncIterator[AgentProcess]:
    """An agent; `program` are Python's arguments in place of a module, `wrapper` is what starts Python."""
    # Where the tests themselves run in a pod, that one's cluster is none of theirs.
    foreign = ("NODE_AGENT_", "KUBERNETES_SERVICE_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    process = await asyncio.create_subprocess_exec(
        *wrapper, *(program or ("-m", *module)), env={**inherited, **environ}, stderr=asyncio.subprocess.PIPE
    )
    running = AgentProcess(process, [], [])
    reader = asyncio.create_task(_read(running))
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reader


async def _read(running: AgentProcess) -> None:
    assert running.process.stderr is not None
    async for line in running.process.stderr:
        running.raw.append(line.decode())
        if line.startswith(b"{"):
            running.lines.append(json.loads(line))


async def probe(running: AgentProcess, path: str) -> tuple[int, Any]:
    await until(lambda: running.event("probes.listening"))
    line = running.event("probes.listening")
    assert line is not None
    async with aiohttp.ClientSession() as http, http.get(f"http://{line['address']}{path}") as answer:
        return answer.status, await answer.json()
