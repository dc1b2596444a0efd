"""Processes of the simulated world. An environment variable marks them, so that they can be found and ended by pid."""

import asyncio
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Every process of a world, and all its children, have the world's directory in this environment variable.
MARK = "SIM_WORLD"
# Settings in the user's environment must not reach the world's processes.
OURS = ("SIM_", "KUBEAI_", "NODE_AGENT_", "JOB_SUPERVISOR_")
POLL_SECONDS = 0.01
TAIL_LINES = 15


class ProcessEnded(RuntimeError):  # noqa: N818 - the name describes what happened
    """A process ended that should run. The message contains its last output."""


class TooLate(TimeoutError):  # noqa: N818 - the name describes what happened
    """Something did not happen in time. The message says what."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A running process of a world."""

    pid: int
    command: str


class CloudChild:
    """A process that we started, with its output in a log file."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        self._process.send_signal(number)

    def check(self) -> None:
        """Check that it runs.

        Raises:
            ProcessEnded: It does not.
        """
        if not self.running:
            raise ProcessEnded(f"{self.name} ended with {self.exit_code}:\n{self.tail()}")

    def tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    async def wait(self, seconds: float) -> int:
        """Wait for its end and return its exit code.

        Raises:
            TooLate: It still runs after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while (code := self.exit_code) is None:
            if time.monotonic() > deadline:
                raise TooLate(f"{self.name} still runs after {seconds:g} s")
            await asyncio.sleep(POLL_SECONDS)
        return code

    async def kill(self) -> None:
        self._process.kill()
        await self.wait(seconds=10)

    async def stop(self, grace: float = 5.0) -> float:
        """Stop it with SIGTERM, after `grace` seconds with SIGKILL. Return the seconds that took."""
        started = time.monotonic()
        self.send(signal.SIGTERM)
        try:
            await self.wait(grace)
        except TooLate:
            await self.kill()
        return time.monotonic() - started


def script(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts")) / name)


def environment(mark: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a world's process: the user's without our settings, the mark, and `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    path = os.pathsep.join([sysconfig.get_path("scripts"), kept.get("PATH", os.defpath)])
    return {**kept, "PATH": path, MARK: str(mark), **extra}


def spawn(name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> CloudChild:
    """Start a process in a session of its own, so that Ctrl-C in the terminal does not reach it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603  # The commands are the simulator's own.
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return CloudChild(name, process, log)


async def stop_all(children: Iterable[CloudChild], grace: float) -> None:
    """Send SIGTERM to all processes at once, and SIGKILL to those that still run after `grace` seconds."""
    children = list(children)
    for child in children:
        child.send(signal.SIGTERM)
    for child in children:
        await child.stop(grace)


def leftovers(mark: Path) -> list[Leftover]:
    """Return all running processes with the world's mark, whatever their parent is."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [Leftover(pid, _command(pid)) for pid in pids if carries(pid, mark)]


def carries(pid: int, mark: Path) -> bool:
    """Whether this process runs and has the world's mark."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(f"{MARK}={mark}") in variables


def end(pid: int, mark: Path) -> None:
    """Kill a process with SIGKILL if it has the world's mark."""
    if carries(pid, mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"
