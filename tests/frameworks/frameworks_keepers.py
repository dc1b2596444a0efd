"""Runs a real state keeper for a job of a test, on loopback and without authentication."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.testkit.loopback import drawn_address
from tests.testkit.waiting import wait_until

_DAMAGED = 100
"""A place of a part before its rows."""


@dataclass(slots=True)
class RunningKeeper:
    """A state keeper.

    Attributes:
        directory: Where the parts are.
        size: For how many bytes it has room.
        address: Where it listens.
    """

    directory: Path
    size: int
    # A port of 127.0.0.1 may be another program's while a keeper that was killed is started again.
    address: str = field(default_factory=lambda: f"{drawn_address()}:0")
    _process: subprocess.Popen[bytes] | None = None

    @property
    def _log(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}.log")

    def _logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start its process, and wait until it listens: at the same address and with the same parts as before."""
        environ = {
            "STATE_KEEPER_DIRECTORY": str(self.directory),
            "STATE_KEEPER_BYTES": str(self.size),
            "STATE_KEEPER_ADDRESS": self.address,
            "STATE_KEEPER_AUTHENTICATION": "none",
            "STATE_KEEPER_PROBE_ADDRESS": "",
            "STATE_KEEPER_METRICS_ADDRESS": "",
            "STATE_KEEPER_LOG_FORMAT": "json",
        }

        def address() -> str:
            return next((str(line["address"]) for line in self._logged() if line["event"] == "keeper.listening"), "")

        command = [sys.executable, "-m", "node_agent.keeper"]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
        self.address = wait_until(address, lambda: self._log.read_text(encoding="utf-8"))

    def go_on(self) -> None:
        """Let it go on after a signal has frozen or killed it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        if self.has_ended():
            self._process.wait()
            self.start()

    def has_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def parts(self) -> list[Path]:
        """Return the files of the parts that it has."""
        return [path for path in self.directory.iterdir() if path.name.count(".") == 2]

    def kept_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.parts())

    def refusals(self) -> set[str]:
        """Return the codes with which it has refused something."""
        return {str(line["code"]) for line in self._logged() if line["event"] == "keeper.refused"}

    def end(self) -> None:
        """End it. What it has remains in its directory, where nobody asks for it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        self._process.wait()

    def damage(self) -> None:
        """Change one bit of each part."""
        for path in self.parts():
            content = bytearray(path.read_bytes())
            content[_DAMAGED] ^= 1
            path.write_bytes(content)


@contextlib.contextmanager
def state_keeper(directory: Path, size: int) -> Iterator[RunningKeeper]:
    """Run a state keeper with room for `size` bytes, until the end of the block."""
    directory.mkdir()
    keeper = RunningKeeper(directory, size)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.end()
