"""Child processes of the launcher. They die with it, and a pid file for each worker is in its node's folder."""

import asyncio
import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class WorkerChild:
    """A running process and its pid file."""

    process: "subprocess.Popen[bytes]"
    pid_file: Path | None = None

    @property
    def pid(self) -> int:
        """Its process id, which is not reused until the child has been reaped."""
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has been reaped."""
        # Not Popen.send_signal, which may reap: the pid file would then outlive the pid.
        if self.process.returncode is None:
            os.kill(self.process.pid, number)

    async def ended(self) -> int:
        """Wait for its exit, reap it and remove its file. Returns the exit code, negative for a signal."""
        await _exit_of(self.process.pid)
        if self.pid_file is not None:
            # Before the reaping, because afterwards the pid may be reused.
            self.pid_file.unlink(missing_ok=True)
        return self.process.wait()


def start_worker(command: Sequence[str], environ: Mapping[str, str], node: Path | None) -> WorkerChild:
    """Start a worker.

    Args:
        command: The command to run.
        environ: Its whole environment.
        node: Folder of its node. Before the command runs, the file ``<pid>`` appears there with the process's start
            time (field 22 of /proc/PID/stat), which distinguishes it from a later process with the same pid.
    """
    if node is not None:
        node.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(  # noqa: S603 - the command is the user's own
        command,
        env=environ,
        # The launcher has no threads, so running Python between fork and exec is safe.
        preexec_fn=_prepare(os.getpid(), node),  # noqa: PLW1509 - see above
        # It represents a process on another host, so a signal to the launcher's group must not reach it: a slow
        # launcher would take its exit for a failure.
        start_new_session=True,
    )
    return WorkerChild(process, node / str(process.pid) if node is not None else None)


async def output_of(command: Sequence[str], seconds: float) -> str:
    """Return the standard output of a command. Raises CalledProcessError, or TimeoutError after `seconds`."""
    with tempfile.TemporaryFile() as output:
        # In a session of its own: a signal to the launcher's group is not meant for it.
        process = subprocess.Popen(  # noqa: S603, ASYNC220 - as above; starting takes a millisecond
            command,
            stdout=output,
            start_new_session=True,
            preexec_fn=_prepare(os.getpid(), None),  # noqa: PLW1509 - as above
        )
        try:
            async with asyncio.timeout(seconds):
                await _exit_of(process.pid)
        finally:
            process.kill()
            code = process.wait()
        if code != 0:
            raise subprocess.CalledProcessError(code, list(command))
        output.seek(0)
        return output.read().decode(errors="replace")


def _prepare(parent: int, node: Path | None) -> Callable[[], None]:
    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # The launcher died before prctl took effect.
            os._exit(1)
        if node is not None:
            (node / str(os.getpid())).write_text(_start_time())

    return prepare


def _start_time() -> str:
    # The second field is the command's name in parentheses and may contain anything, so count from its end.
    return Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]


async def _exit_of(pid: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
