"""Training scripts as real processes."""

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.testkit.waiting import wait_until

SDK = Path(__file__).parents[2] / "sdk"

# The shape of a user's script: asked before every batch, saves, exits with -1.
TRAINING = """
    import sys, time
    import kubeai.elastic as kubeai

    kubeai.init()
    print("training")
    while True:
        if kubeai.check_alive() == False:
            print("saved")
            sys.exit(-1)
        time.sleep(0.005)
"""
HOLDING = "kubeai.elastic: the job stops: sent by a test. This process waits for its release, at most {} s\n"


_SENDER = re.compile(r" \(rank \w+, \S+, pid \d+\)$", re.MULTILINE)


def without_sender(lines: str) -> str:
    """Lines of the library without what ends them: rank, host and process id."""
    return _SENDER.sub("", lines)


@dataclass(frozen=True)
class TrainingScript:
    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def wait_for_line(self, text: str, seconds: float = 30.0) -> None:
        """Wait until the script has printed a line that contains `text`."""
        wait_until(lambda: text in self.out.read_text(), lambda: f"{text!r} of {self.output()}", seconds=seconds)

    def end(self, seconds: float = 30.0) -> int:
        return self.process.wait(seconds)

    def output(self) -> str:
        return self.out.read_text() + self.warnings()

    def warnings(self) -> str:
        """Standard error, without the names of the process that end each line of the library."""
        return without_sender(self.err.read_text())


Start = Callable[..., TrainingScript]


@dataclass(frozen=True)
class Clean:
    home: Path
    uv: str

    @property
    def python(self) -> str:
        return str(self.home / "bin" / "python")

    @property
    def packages(self) -> Path:
        return next(self.home.glob("lib/python*/site-packages"))

    def install(self, *arguments: str) -> bool:
        # uv's own certificates do not know an index behind a company's authority; those of the system do.
        command = [self.uv, "pip", "install", "--system-certs", "--quiet", "--python", self.python, *arguments]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def remove(self, distribution: str) -> None:
        command = [self.uv, "pip", "uninstall", "--quiet", "--python", self.python, distribution]
        subprocess.run(command, check=True, capture_output=True)

    def says(self, code: str, *path: Path) -> str:
        """Run a line of Python there without this repository on its path and return its output; `path` comes first."""
        environ = {"PYTHONPATH": os.pathsep.join(map(str, path)), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [self.python, "-W", "error", "-c", code],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=self.home,
        )
        return done.stdout.strip()
