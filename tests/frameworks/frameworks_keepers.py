"""Runs a real state keeper for a job of a test, on loopback and without authentication."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testkit.waiting import wait_until


@dataclass(frozen=True, slots=True)
class RunningKeeper:
    """A state keeper.

    Attributes:
        address: Where it listens.
        directory: Where the parts are.
        process: Its process.
    """

    address: str
    directory: Path
    process: subprocess.Popen[bytes]

    def parts(self) -> list[Path]:
        """Return the files of the parts that it has."""
        return [path for path in self.directory.iterdir() if path.name.count(".") == 2]

    def kept_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.parts())

    def end(self) -> None:
        """End it. What it has remains in its directory, where nobody asks for it."""
        self.process.terminate()
        self.process.wait()

    def damage(self) -> None:
        """Change one bit of each part."""
        for path in self.parts():
            content = bytearray(path.read_bytes())
            content[_DAMAGED] ^= 1
            path.write_bytes(content)


_DAMAGED = 100
"""A place of a part before its rows."""


@contextlib.contextmanager
def state_keeper(directory: Path, size: int) -> Iterator[RunningKeeper]:
    """Run a state keeper with room for `size` bytes, until the end of the block."""
    directory.mkdir()
    log = directory.with_name(f"{directory.name}.log")
    environ = {
        "STATE_KEEPER_DIRECTORY": str(directory),
        "STATE_KEEPER_BYTES": str(size),
        "STATE_KEEPER_ADDRESS": "127.0.0.1:0",
        "STATE_KEEPER_AUTHENTICATION": "none",
        "STATE_KEEPER_PROBE_ADDRESS": "",
        "STATE_KEEPER_METRICS_ADDRESS": "",
        "STATE_KEEPER_LOG_FORMAT": "json",
    }

    def address() -> str:
        lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
        return next((str(line["address"]) for line in lines if line["event"] == "keeper.listening"), "")

    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "node_agent.keeper"], env=environ, stdout=output, stderr=output
        )
    try:
        yield RunningKeeper(wait_until(address, lambda: log.read_text(encoding="utf-8")), directory, process)
    finally:
        process.terminate()
        process.wait()
