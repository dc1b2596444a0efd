"""Runs a supervisor as a process, with peers that talk to it."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.identity.tokens import Tokens
from supervisor.serving.servers import ENDPOINTS_FILE
from supervisor.settings import PREFIX
from tests.testkit.serving import FAST, ServedPeers
from tests.testkit.waiting import PATIENCE, until

_COMMAND = (sys.executable, "-m", "supervisor")


@dataclass(frozen=True, slots=True)
class ServerProcess:
    process: subprocess.Popen[bytes]
    peers: ServedPeers

    async def ended(self, within: float = PATIENCE) -> int:
        await until(lambda: self.process.poll() is not None, seconds=within)
        return self.process.returncode

    async def status(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.peers.tokens.viewer()}"}
        async with self.peers.session.get(self.peers.http + "/v1/status", headers=headers) as response:
            value: dict[str, Any] = await response.json()
        return value


def spawn(environment: dict[str, str], command: Sequence[str] = _COMMAND) -> "subprocess.Popen[bytes]":
    """Starts the process. Its log goes to a pipe and not to a file, because a full disk has to hit the store."""
    return subprocess.Popen([*command, "serve"], env=environment, stderr=subprocess.PIPE)


@asynccontextmanager
async def started(directory: Path, command: Sequence[str] = _COMMAND, **changes: Any) -> AsyncIterator[ServerProcess]:
    """Starts a supervisor on that data directory, and kills it at the end if it still runs."""
    endpoints = directory / ENDPOINTS_FILE
    endpoints.unlink(missing_ok=True)
    settings = {**FAST, "data_dir": directory, "log_format": "json", **changes}
    environment = {**os.environ, **{PREFIX + name.upper(): str(value) for name, value in settings.items()}}
    with spawn(environment, command) as process:
        try:
            await until(lambda: endpoints.exists() or process.poll() is not None)
            async with ServedPeers.of(Tokens.load(directory), json.loads(endpoints.read_bytes())) as peers:
                yield ServerProcess(process, peers)
        finally:
            process.kill()
