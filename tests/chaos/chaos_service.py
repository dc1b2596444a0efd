"""Runs one supervisor process at a time on a data directory and observes it from outside."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.identity.tokens import Tokens
from supervisor.serving.servers import ENDPOINTS_FILE
from supervisor.settings import PREFIX
from tests.testkit.serving import FAST, ServedPeers
from tests.testkit.waiting import until

START_SECONDS = 60.0
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class ServiceLife:
    process: subprocess.Popen[bytes]
    log: Path
    directory: Path

    def fired(self, name: str) -> bool:
        return self.process.returncode == -signal.SIGKILL and f"failpoint {name}: " in self.said()

    def said(self) -> str:
        return _ESCAPES.sub("", self.log.read_text(encoding="utf-8"))

    def said_of(self, code: str) -> str:
        """The lines of a JSON log about refusals with this code, for people: a traceback is on lines of its own."""
        lines = [line for line in self.said().splitlines() if f'"code": "{code}"' in line]
        return "\n".join(line.replace("\\n", "\n") for line in lines)

    @asynccontextmanager
    async def peers(self) -> AsyncIterator[ServedPeers]:
        endpoints = json.loads((self.directory / ENDPOINTS_FILE).read_bytes())
        async with ServedPeers.of(Tokens.load(self.directory), endpoints) as peers:
            yield peers


@asynccontextmanager
async def life(
    directory: Path, command: Sequence[str] = ("supervisor", "serve"), **changes: object
) -> AsyncIterator[ServiceLife]:
    """A supervisor on that directory, once it serves or has died; killed at the end."""
    endpoints = directory / ENDPOINTS_FILE
    if endpoints.exists():
        endpoints.unlink()
    settings = {**FAST, "data_dir": directory, **changes}
    environment = {**os.environ, **{PREFIX + name.upper(): str(value) for name, value in settings.items()}}
    log = directory.with_name(f"log-{time.monotonic_ns()}")
    process = _spawn(command, environment, log)
    try:
        await until(lambda: endpoints.exists() or process.poll() is not None, seconds=START_SECONDS)
        yield ServiceLife(process, log, directory)
    finally:
        process.kill()
        process.wait()


def _spawn(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, "-m", *command], env=environment, stderr=output)


async def status(peers: ServedPeers) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {peers.tokens.viewer()}"}
    async with peers.session.get(peers.http + "/v1/status", headers=headers) as response:
        value: dict[str, Any] = await response.json()
    return value
