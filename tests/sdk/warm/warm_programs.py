"""Programs of a virtual environment of their own, started by python and by kubeai-python."""

import os
import signal
import subprocess
import textwrap
import venv
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sdk.sdk_scripts import SDK
from tests.testkit.waiting import wait_until

_COMMAND = "from kubeai.warm.python import main\nmain()\n"


@dataclass(frozen=True)
class WarmPrograms:
    """A virtual environment, and a directory of scripts and templates.

    Attributes:
        home: The virtual environment.
        scripts: The directory of the user's scripts and modules.
        templates: The directory of templates; they end once it is gone.
        variables: Given to all commands.
        started: All commands, which end with the test.
    """

    home: Path
    scripts: Path
    templates: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @classmethod
    def make(cls, root: Path, templates: Path) -> "WarmPrograms":
        home, scripts = root / "venv", root / "scripts"
        venv.create(home, symlinks=True, with_pip=False)
        scripts.mkdir()
        command = home / "bin" / "kubeai-python"
        command.write_text(f"#!{home / 'bin' / 'python'}\n{_COMMAND}", encoding="ascii")
        command.chmod(0o755)
        return cls(home, scripts, templates)

    def install(self, name: str, source: str) -> None:
        """Write a module of an installed package."""
        packages = next(self.home.glob("lib/python*/site-packages"))
        (packages / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")

    def write(self, name: str, source: str) -> None:
        """Write a script or module of the user's."""
        (self.scripts / name).write_text(textwrap.dedent(source), encoding="utf-8")

    def python(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run python to its end."""
        return self._run("python", arguments, variables)

    def warm(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run kubeai-python to its end."""
        return self._run("kubeai-python", arguments, variables)

    def run_by(self, wrapper: Sequence[str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run python or kubeai-python by another command."""
        command = [*wrapper, str(self.home / "bin" / program), *arguments]
        return subprocess.run(command, **self.place({}), capture_output=True, text=True, check=False, timeout=120)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start kubeai-python."""
        process = subprocess.Popen(
            [str(self.home / "bin" / "kubeai-python"), *arguments],
            **self.place(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def prepared(self, *arguments: str, **variables: str) -> None:
        """Run a program once as usual, and wait for its template, which this process owns."""
        self.warm(*arguments, **variables)
        self.until_prepared()

    def until_prepared(self, besides: Sequence[int] = ()) -> list[int]:
        """Wait for a template that is none of these; returns all that serve."""

        def serving() -> list[int]:
            found = [pid for pid in self.processes("template.py") if pid not in besides]
            return found if found and any(self.templates.glob("*.sock")) else []

        return wait_until(serving, "a template")

    def processes(self, script: str = "") -> list[int]:
        """Return the processes of this test that run, or all whose command line names a script."""
        mark = f"KUBEAI_WARM_DIR={self.templates}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    is_zombie = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
                    names = script.encode() in (entry / "cmdline").read_bytes()
                    if names and not is_zombie:
                        found.append(int(entry.name))
        return found

    def descriptors(self, pid: int) -> int:
        """Return how many open descriptors a process has."""
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    def end(self, pids: Iterable[int]) -> None:
        """Kill processes of this test."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _run(
        self, program: str, arguments: Sequence[str], variables: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.home / "bin" / program), *arguments]
        return subprocess.run(
            command, **self.place(variables), capture_output=True, text=True, check=False, timeout=120
        )

    def place(self, variables: dict[str, str]) -> dict[str, Any]:
        """Return the working directory, variables and input of a command."""
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SDK),
            "KUBEAI_WARM_DIR": str(self.templates),
            **self.variables,
            **variables,
        }
        return {"cwd": self.scripts, "env": environment, "stdin": subprocess.DEVNULL}
