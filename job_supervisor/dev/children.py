"""The processes that `dev` starts. None of them outlives it, not even after SIGKILL."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from job_supervisor.dev.errors import ChildEnded, UsageError

# A script of the SDK, which the kernel makes end with its parent. It is started by name: nothing here imports the SDK.
_WITH_PARENT = "kubeai.elastic.commands.die_with_parent"
_OWN_VARIABLES = ("JOB_SUPERVISOR_", "NODE_AGENT_", "SUPERVISOR_CLI_", "KUBEAI_")
_POLL_SECONDS = 0.05
_TAIL_LINES = 8


def command(name: str) -> str:
    """The path of a command that is installed with this one, or is on the user's path.

    Raises:
        UsageError: There is none.
    """
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise UsageError(
            f"`dev` needs {name}, which is not installed here. The SDK has it: pip install kubeai-elastic."
        )
    return found


@dataclass(frozen=True, slots=True)
class Child:
    """A started process; `log` is None if its output goes to the terminal."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def check(self) -> None:
        """Checks that it runs.

        Raises:
            ChildEnded: It does not.
        """
        if not self.running:
            raise ChildEnded(f"{self.manner}.{self._last_output()}")

    @property
    def is_killed(self) -> bool:
        """Whether a signal has ended it."""
        return not self.running and self.process.returncode < 0

    @property
    def manner(self) -> str:
        """How it has ended."""
        code = self.process.returncode
        how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        return f"{self.name} {how}"

    async def ended(self) -> int:
        while (code := self.process.poll()) is None:  # noqa: ASYNC110 - nothing sets an event: we have no watcher.
            await asyncio.sleep(_POLL_SECONDS)
        return code

    async def stop(self, grace: float) -> None:
        """Sends SIGTERM, and SIGKILL after `grace` seconds."""
        self.process.terminate()
        try:
            async with asyncio.timeout(grace):
                await self.ended()
        except TimeoutError:
            self.process.kill()
            await self.ended()

    async def kill(self) -> None:
        self.process.kill()
        await self.ended()

    def _last_output(self) -> str:
        if self.log is None:
            return ""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        shown = "".join(f"\n  {line}" for line in lines)
        return f" Its last output, from {self.log}:{shown}" if shown else " It has written nothing."


def start(name: str, arguments: Sequence[str], variables: Mapping[str, str], log: Path | None) -> Child:
    """Starts a process in a session of its own, so that Ctrl-C in the terminal reaches `dev` alone."""
    wrapped = [sys.executable, "-P", "-m", _WITH_PARENT, str(os.getpid()), *arguments]
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(_opened(log))
        process = subprocess.Popen(  # noqa: S603 - our own commands, and the job that the user has named.
            wrapped,
            env=_environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return Child(name, process, log)


def _opened(log: Path) -> BinaryIO:
    """A log that only its owner may read."""
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


async def stop_all(children: Iterable[Child], grace: float) -> None:
    """Stops processes all at once."""
    async with asyncio.TaskGroup() as group:
        for child in children:
            group.create_task(child.stop(grace))


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The user's environment without settings of ours, and with this installation's commands on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
    path = os.pathsep.join([sysconfig.get_path("scripts"), kept.get("PATH", os.defpath)])
    return {**kept, "PATH": path, **variables}
