"""The supervisor under measurement: a real process, started through its command and documented settings."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.machine import Usage, usage
from servicekit.address import Address, parse
from simulator.certificates import Authority
from simulator.cloud.process import Child, TooLate, environment, script, spawn
from supervisor.identity.tokens import Tokens

_START_SECONDS = 30.0
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a supervisor listens."""

    grpc: str
    http: str

    @property
    def http_address(self) -> Address:
        """Host and port, without the scheme."""
        return parse(self.http.partition("://")[2])


class Server:
    """One `elastic-job-supervisor serve` with a data directory of its own; every start has the first one's ports.

    Args:
        root: An empty directory.
        tls: It serves with a certificate, which an authority of its own has signed.
    """

    def __init__(self, root: Path, *, tls: bool) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._authority = Authority(root / "certificates") if tls else None
        self._data = root / "supervisor"
        self._file = self._data / "endpoints.json"
        self._root = root
        self._endpoints: Endpoints | None = None
        self._child: Child | None = None
        self.log = root / "logs" / "supervisor.log"

    @property
    def endpoints(self) -> Endpoints:
        """Where it listens, once it was started."""
        if self._endpoints is None:
            raise AssertionError("start it first")
        return self._endpoints

    @property
    def ca(self) -> Path | None:
        """Whom its clients have to trust; None without TLS."""
        return None if self._authority is None else self._authority.ca_file

    @property
    def tokens(self) -> Tokens:
        """What signs its tokens, once it was started."""
        return Tokens.load(self._data)

    async def start(self) -> None:
        """Starts it and returns once it serves.

        Raises:
            ProcessEnded: It ended instead.
            TooLate: It does not serve.
        """
        self._file.unlink(missing_ok=True)
        env = environment(self._root, self._settings())
        self._child = spawn("supervisor", [script("elastic-job-supervisor"), "serve"], env, self.log)
        deadline = time.monotonic() + _START_SECONDS
        while not self._file.exists():
            self._child.check()
            if time.monotonic() > deadline:
                raise TooLate(f"the supervisor does not serve:\n{self._child.tail()}")
            await asyncio.sleep(_LOOK_SECONDS)
        self._endpoints = msgspec.json.decode(self._file.read_bytes(), type=Endpoints)

    def usage(self) -> Usage:
        """What it has used since it was started."""
        return usage(self._running().pid)

    async def kill(self) -> None:
        """Ends it with SIGKILL."""
        await self._running().kill()

    async def stop(self) -> None:
        """Ends it in order."""
        if self._child is not None and self._child.running:
            await self._child.stop()

    def _running(self) -> Child:
        if self._child is None:
            raise AssertionError("start it first")
        return self._child

    def _settings(self) -> dict[str, str]:
        known = self._endpoints
        return {
            "JOB_SUPERVISOR_DATA_DIR": str(self._data),
            "JOB_SUPERVISOR_GRPC_ADDRESS": known.grpc if known else "127.0.0.1:0",
            "JOB_SUPERVISOR_HTTP_ADDRESS": str(known.http_address) if known else "127.0.0.1:0",
            "JOB_SUPERVISOR_LOG_FORMAT": "json",
            **self._certificate(),
        }

    def _certificate(self) -> dict[str, str]:
        if self._authority is None:
            return {}
        return {
            "JOB_SUPERVISOR_TLS_CERT_FILE": str(self._authority.cert_file),
            "JOB_SUPERVISOR_TLS_KEY_FILE": str(self._authority.key_file),
        }
