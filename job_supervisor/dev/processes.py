"""The processes that `dev` starts. None of them outlives it, not even after SIGKILL."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from job_supervisor.cli.output import printable
from job_supervisor.dev.options import ChildEnded, DevUsageError

# A script of the SDK, which the kernel makes end with its parent. It is started by name: nothing here imports the SDK.
_WITH_PARENT = "kubeai.elastic.commands.die_with_parent"
_OWN_VARIABLES = ("JOB_SUPERVISOR_", "NODE_AGENT_", "SUPERVISOR_CLI_", "KUBEAI_")
_POLL_SECONDS = 0.05
_TAIL_LINES = 8

_started = time.monotonic()


def say(text: str) -> None:
    """Prints a sentence, with the seconds since the start of `dev`."""
    seconds = f"{time.monotonic() - _started:5.1f} s  "
    first, *others = text.splitlines()
    sys.stdout.write("".join(printable(line) + "\n" for line in (seconds + first, *others)))
    sys.stdout.flush()


def command(name: str) -> str:
    """Finds a command that is installed with this one, or is on the user's path.

    Raises:
        DevUsageError: There is none.
    """
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise DevUsageError(
            f"`dev` needs {name}, which is not installed here. The SDK has it: pip install kubeai-elastic."
        )
    return found


@dataclass(frozen=True, slots=True)
class DevProcess:
    """A started process; `log` is None if its output goes to the terminal."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def manner(self) -> str:
        """How it has ended."""
        code = self.process.returncode
        how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        return f"{self.name} {how}"

    def check(self) -> None:
        """Checks that the process runs.

        Raises:
            ChildEnded: It does not. The message has the end of its log.
        """
        if self.running:
            return
        if self.log is None:
            raise ChildEnded(f"{self.manner}.")
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        shown = "".join(f"\n  {line}" for line in lines)
        output = f"Its last output, from {self.log}:{shown}" if shown else "It has written nothing."
        raise ChildEnded(f"{self.manner}. {output}")

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


def start(name: str, arguments: Sequence[str], variables: Mapping[str, str], log: Path | None) -> DevProcess:
    """Starts a process in a session of its own, so that Ctrl-C in the terminal reaches `dev` alone."""
    # The user's environment without settings of ours, and with this installation's commands on the path.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
    path = os.pathsep.join([sysconfig.get_path("scripts"), kept.get("PATH", os.defpath)])
    wrapped = [sys.executable, "-P", "-m", _WITH_PARENT, str(os.getpid()), *arguments]
    with ExitStack() as stack:
        output = None
        if log is not None:  # Only its owner may read it.
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            output = stack.enter_context(os.fdopen(descriptor, "ab"))
        process = subprocess.Popen(  # noqa: S603 - our own commands, and the job that the user has named.
            wrapped,
            env={**kept, "PATH": path, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return DevProcess(name, process, log)


async def stop_all(children: Iterable[DevProcess], grace: float) -> None:
    """Stops processes all at once."""
    async with asyncio.TaskGroup() as group:
        for child in children:
            group.create_task(child.stop(grace))
