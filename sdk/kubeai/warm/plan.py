"""What a template is to be, and how one is started."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from kubeai.warm.command_line import PythonCommand
from kubeai.warm.place import socket_path

AGAIN = "again"
"""The argument of a template that has replaced another one, and so is nobody's child already."""

_TEMPLATE = Path(__file__).with_name("template.py")


@dataclass(frozen=True)
class TemplatePlan:
    """What a template is to be.

    Attributes:
        executable: The interpreter.
        command: The first command that it is for. Its arguments do not matter.
        directory: Where its socket is.
        owner: The process that starts workers. The template ends some time after it.
        owner_began: When the owner was started, as the kernel counts; "" if it is gone.
        names: Modules to import, in this order.
        without: Modules to leave out.
        learns: A pipe on which the first worker tells its imports; None if they are known.
        ready: A pipe that is closed once the template serves, or has ended; None if nobody waits.
        keep: Seconds that it stays without a worker and without its owner.
        remakes: How often it was begun again.
        successors: How many templates came before it.
    """

    executable: str
    command: PythonCommand
    directory: str
    owner: int
    owner_began: str
    names: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    learns: int | None = None
    ready: int | None = None
    keep: float = 60.0
    remakes: int = 0
    successors: int = 0

    @property
    def path(self) -> Path:
        """Its socket."""
        return socket_path(Path(self.directory), self.executable, self.command)

    def write(self) -> int:
        """Return a file that contains the plan, open at its beginning."""
        fields = {**vars(self), "command": self.command.fields()}
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(fields).encode("ascii"))
            file.seek(0)
            return os.dup(file.fileno())

    @classmethod
    def read(cls, text: str) -> TemplatePlan:
        """Return the plan that was written."""
        fields: dict[str, Any] = json.loads(text)
        lists = {name: tuple(fields[name]) for name in ("names", "without")}
        return cls(**{**fields, **lists, "command": PythonCommand.from_fields(fields["command"])})


def began(pid: int) -> str:
    """Return when a process was started, as the kernel counts; "" if it is gone. A number may be used again."""
    with contextlib.suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if stat[0] in (b"Z", b"X") else stat[19].decode()
    return ""


def start(plan: TemplatePlan, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a template in a session of its own; returns a process that ends at once. Raises OSError."""
    file = plan.write()
    kept = [pipe for pipe in (plan.learns, plan.ready) if pipe is not None]
    try:
        return subprocess.Popen(  # noqa: S603 - our own script
            [plan.executable, *plan.command.options, str(_TEMPLATE), plan.command.shown],
            stdin=file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            pass_fds=kept,
            start_new_session=True,
        )
    finally:
        os.close(file)


def begin_again(plan: TemplatePlan, environment: Mapping[str, str]) -> None:
    """Replace this template by a new process: what is imported cannot be taken back."""
    if plan.ready is not None:
        os.set_inheritable(plan.ready, True)  # noqa: FBT003 - takes no keyword
    file = plan.write()
    os.dup2(file, 0)
    os.close(file)
    arguments = [plan.executable, *plan.command.options, str(_TEMPLATE), plan.command.shown, AGAIN]
    os.execve(plan.executable, arguments, dict(environment))  # noqa: S606 - our own script
