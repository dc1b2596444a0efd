"""Runs several supervisors as real processes on one control plane."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp

from supervisor.identity.tokens import Tokens
from supervisor.serving.servers import ENDPOINTS_FILE
from supervisor.settings import PREFIX
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.serving import FAST, ServedPeers
from tests.testkit.waiting import PATIENCE, until

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/job-supervisor"
LEASE_SECONDS = 3
"""As by default."""

DEPOSED = 75


@dataclass(frozen=True, slots=True)
class LeaderReplica:
    process: subprocess.Popen[bytes]
    directory: Path
    log: Path

    @property
    def serves(self) -> bool:
        return (self.directory / ENDPOINTS_FILE).exists()

    def said(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def heard(self, event: str) -> bool:
        return any(each["event"] == event for each in self.said())

    async def ended(self, within: float = PATIENCE) -> int:
        await until(lambda: self.process.poll() is not None, seconds=within)
        return self.process.returncode

    async def kill(self) -> None:
        self.process.kill()
        await self.ended()

    async def probe(self, path: str) -> tuple[int, Any]:
        """Return the status and body of a probe's answer."""
        await until(lambda: self.heard("probes.listening") or self.process.poll() is not None)
        address = next(each["address"] for each in self.said() if each["event"] == "probes.listening")
        async with aiohttp.request("GET", f"http://{address}{path}") as answer:
            return answer.status, await answer.json()

    @asynccontextmanager
    async def peers(self) -> AsyncIterator[ServedPeers]:
        endpoints = json.loads((self.directory / ENDPOINTS_FILE).read_bytes())
        async with ServedPeers.of(Tokens.load(self.directory), endpoints) as peers:
            yield peers


@dataclass(slots=True)
class LeaderReplicas:
    """All replicas of one supervisor; they share the first one's secret unless the cluster keeps it.

    Attributes:
        program: The module that is run, with its arguments.
    """

    place: InstalledPlace
    root: Path
    kubeconfig: Path
    program: Sequence[str] = ("supervisor", "serve")
    all: list[LeaderReplica] = field(default_factory=list)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @classmethod
    @asynccontextmanager
    async def on(cls, place: InstalledPlace, root: Path, kubeconfig: Path | None = None) -> AsyncIterator[Self]:
        """On that control plane, none at first; killed at the end."""
        replicas = cls(place, root, kubeconfig or place.kubeconfig)
        async with replicas.stack:
            yield replicas

    async def start(
        self,
        *,
        serving: bool = True,
        within: float = PATIENCE,
        variables: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> LeaderReplica:
        """One more: returns when it serves, or else when it stands by, within so many seconds.

        Args:
            serving: Whether it will lead at once.
            within: Seconds.
            variables: More of its environment.
            changes: Its settings.
        """
        number = len(self.all)
        directory = self.root / f"replica{number}"
        directory.mkdir(mode=0o700)
        if self.all and "keys_secret" not in changes:
            shutil.copy2(self.all[0].directory / "token-secret", directory)
        replica = LeaderReplica(
            self._spawn(directory, changes, variables or {}), directory, directory.with_suffix(".log")
        )
        self.all.append(replica)
        self.stack.callback(replica.process.wait)
        self.stack.callback(replica.process.kill)
        await until(
            lambda: (
                replica.process.poll() is not None
                or (replica.serves if serving else replica.heard("supervisor.standing_by"))
            ),
            seconds=within,
        )
        assert replica.process.poll() is None, replica.log.read_text()
        return replica

    def _spawn(self, directory: Path, changes: Mapping[str, Any], given: Mapping[str, str]) -> subprocess.Popen[bytes]:
        settings = {
            **FAST,
            "store": "kubernetes",
            "data_dir": directory,
            "log_format": "json",
            "lease_seconds": LEASE_SECONDS,
            "probe_address": "127.0.0.1:0",
            **changes,
        }
        variables = {**given, **{PREFIX + name.upper(): str(value) for name, value in settings.items()}}
        environment = {**os.environ, **variables, "KUBECONFIG": str(self.kubeconfig)}
        with directory.with_suffix(".log").open("wb") as log:
            return subprocess.Popen([sys.executable, "-m", *self.program], env=environment, stderr=log)

    async def forget_lease(self) -> None:
        items = (await self.place.api.get(LEASE.rpartition("/")[0]))["items"]
        for each in items:
            if each["metadata"]["name"] == "job-supervisor":
                await self.place.api.delete(LEASE)


def freeze(replica: LeaderReplica) -> None:
    replica.process.send_signal(signal.SIGSTOP)


def thaw(replica: LeaderReplica) -> None:
    replica.process.send_signal(signal.SIGCONT)
