"""The measured supervisor: a real process, started through its command and documented settings."""

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from benchmarks.machine import Usage, usage
from servicekit.address import Address, parse
from simulator.certificates import SimulatedAuthority
from simulator.cloud.process import CloudChild, TooLate, environment, script, spawn
from supervisor.identity.tokens import SECRET_FILE, Tokens

_START_SECONDS = 30.0
_POLL_SECONDS = 0.01
_STANDS_BY = b"supervisor.standing_by"


@dataclass(frozen=True, slots=True)
class BenchmarkEndpoints:
    grpc: str
    http: str

    @property
    def http_address(self) -> Address:
        return parse(self.http.partition("://")[2])


class BenchmarkServer:
    """Runs `elastic-job-supervisor serve` with a data directory of its own. A restart uses the same ports.

    Args:
        root: An empty directory.
        tls: Whether it serves with a certificate of its own authority.
        settings: Extra settings, by variable name.
        command: What runs in the place of `elastic-job-supervisor`; empty for that.
        endpoints: Its addresses; by default it chooses free ports.
        start_seconds: The time that a start may take.
    """

    def __init__(  # noqa: PLR0913 - what a scenario may want otherwise
        self,
        root: Path,
        *,
        tls: bool,
        settings: Mapping[str, str] = MappingProxyType({}),
        command: Sequence[str] = (),
        endpoints: BenchmarkEndpoints | None = None,
        start_seconds: float = _START_SECONDS,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._authority = SimulatedAuthority(root / "certificates") if tls else None
        self._data = root / "supervisor"
        self._file = self._data / "endpoints.json"
        self._root = root
        self._more = settings
        self._command = list(command) or [script("elastic-job-supervisor")]
        self._endpoints = endpoints
        self._start_seconds = start_seconds
        self._child: CloudChild | None = None
        self._log_begins = 0
        self.log = root / "logs" / "supervisor.log"

    @property
    def endpoints(self) -> BenchmarkEndpoints:
        """Its addresses, once it was started."""
        if self._endpoints is None:
            raise AssertionError("start it first")
        return self._endpoints

    @property
    def ca(self) -> Path | None:
        """The CA file for its clients; None without TLS."""
        return None if self._authority is None else self._authority.ca_file

    @property
    def tokens(self) -> Tokens:
        """The signer of its tokens, once it was started."""
        return Tokens.load(self._data)

    async def start(self) -> None:
        """Start it and return once it serves.

        Raises:
            ProcessEnded: It ended instead.
            TooLate: It does not serve in time.
        """
        self.launch()
        await self.until_serving()

    def launch(self) -> None:
        """Start it without waiting."""
        self._file.unlink(missing_ok=True)
        self._log_begins = self.log.stat().st_size if self.log.exists() else 0
        env = environment(self._root, self._settings())
        self._child = spawn("supervisor", [*self._command, "serve"], env, self.log)

    async def until_serving(self) -> None:
        """Return once it serves. Raises as `start` does."""
        await self._until(self._file.exists, "serve")
        self._endpoints = msgspec.json.decode(self._file.read_bytes(), type=BenchmarkEndpoints)

    async def until_standby(self) -> None:
        """Return once it has read everything and stands by. Raises as `start` does."""
        await self._until(lambda: _STANDS_BY in self.log.read_bytes()[self._log_begins :], "stand by")

    def second(self, root: Path) -> "BenchmarkServer":
        """Return another supervisor with the same settings, addresses and secret, for a failover."""
        data = root / "supervisor"
        data.mkdir(mode=0o700, parents=True)
        shutil.copy(self._data / SECRET_FILE, data)
        return BenchmarkServer(root, tls=False, settings=self._more, endpoints=self.endpoints)

    def usage(self) -> Usage:
        """Return its usage since its start."""
        return usage(self._running().pid)

    async def kill(self) -> None:
        await self._running().kill()

    async def stop(self) -> None:
        if self._child is not None and self._child.running:
            await self._child.stop()

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        child, deadline = self._running(), time.monotonic() + self._start_seconds
        while not condition():
            child.check()
            if time.monotonic() > deadline:
                raise TooLate(f"the supervisor does not {what}:\n{child.tail()}")
            await asyncio.sleep(_POLL_SECONDS)

    def _running(self) -> CloudChild:
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
            **self._more,
            **self._certificate(),
        }

    def _certificate(self) -> dict[str, str]:
        if self._authority is None:
            return {}
        return {
            "JOB_SUPERVISOR_TLS_CERT_FILE": str(self._authority.cert_file),
            "JOB_SUPERVISOR_TLS_KEY_FILE": str(self._authority.key_file),
        }
