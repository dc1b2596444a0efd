"""Runs the user's command as a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Mapping, Sequence

from kubeai.elastic import threads
from kubeai.elastic.threads import StderrLog

_WRAPPER = Path(__file__).with_name("die_with_parent.py")
_POLL_SECONDS = 0.02
# After SIGKILL: what is still there then hangs in the kernel, and waiting longer does not help.
_GIVE_UP_SECONDS = 2.0


class Command:
    """A started command. Start it from the main thread only (see ``die_with_parent``).

    Args:
        arguments: Program and arguments.
        environment: The whole environment of the command.
        grace: Seconds between SIGTERM and SIGKILL for the rest of the group once the command itself has ended.
        on_exit: Called once, from another thread, with the exit code (minus the signal) when the whole group has ended.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        grace: float,
        on_exit: Callable[[int], None],
    ) -> None:
        self._stderr = StderrLog()
        self._grace = grace
        self._on_exit = on_exit
        wrapper = [sys.executable, "-I", "-S", str(_WRAPPER), str(os.getpid())]
        self._process = subprocess.Popen(  # noqa: S603 - the user's own command.
            [*wrapper, *arguments], env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True
        )
        self.waiter = threads.start("command", self._wait, self._stderr)
        """The thread that ends once the group has ended and ``on_exit`` was called."""

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        # The kernel reserves the group's number as long as one member lives.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def end_within(self, seconds: float) -> None:
        """Send SIGTERM to the whole group now, and SIGKILL after `seconds` if it has not ended. Call it once."""

        def kill_late() -> None:
            self.waiter.join(seconds)
            if self.waiter.is_alive():
                self.signal(signal.SIGKILL)

        self.signal(signal.SIGTERM)
        threads.start("command-end", kill_late, self._stderr)

    def _wait(self) -> None:
        """Wait for the command, and then end the processes that it left behind. Its next run must not meet them."""
        code = self._process.wait()

        def clear_group() -> None:
            self.signal(signal.SIGTERM)
            deadline = time.monotonic() + self._grace
            while self._has_live_member() and time.monotonic() < deadline + _GIVE_UP_SECONDS:
                if time.monotonic() >= deadline:
                    self.signal(signal.SIGKILL)
                time.sleep(_POLL_SECONDS)

        threads.attempt("the end of a command", self._stderr, clear_group)
        self._on_exit(code)

    def _has_live_member(self) -> bool:
        # As process 1 of a container we inherit the command's orphans, and they count until they are reaped.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return has_live_member(self._process.pid)


def has_live_member(group: int) -> bool:
    """Return whether a process group has more than zombies, which nobody may reap outside a container."""
    processes = Path("/proc")
    if not processes.exists():
        return True
    for process in processes.iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):  # it has ended
            # After the name, which is in parentheses and may contain anything: state, parent, group.
            state, _, member_of = (process / "stat").read_bytes().rpartition(b")")[2].split()[:3]
            if int(member_of) == group and state not in (b"Z", b"X"):
                return True
    return False
