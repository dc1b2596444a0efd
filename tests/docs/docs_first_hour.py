"""Runs README.md's first hour on one machine: a fresh clone, an empty environment, the commands as they are written.

`make first-hour` runs it before anything is installed, so it needs the standard library alone.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
ONE_MACHINE = "one machine"
_SAVED = re.compile(r"\bsaved\b|\bis Suspended\b")
"""A job is suspended once its checkpoint is saved."""


class FirstHourError(Exception):
    """The page does not work as it is written."""


def blocks(page: str, mark: str) -> list[str]:
    """Return the commands of each block below `<!-- first hour: MARK -->`."""
    return re.findall(rf"^<!-- first hour: {mark} -->\n```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def first_hour(repository: Path, directory: Path) -> float:
    """Return the seconds from `git clone` to the first line that reports something saved.

    Raises:
        FirstHourError: A block has failed, or nothing was saved.
    """
    begin = time.monotonic()
    subprocess.run(["/usr/bin/env", "git", "clone", "--quiet", str(repository), str(directory)], check=True)
    marked = blocks((directory / "README.md").read_text("utf-8"), ONE_MACHINE)
    saved = [seconds for block in marked for seconds in _run(block, directory, begin)]
    if not saved:
        raise FirstHourError("nothing was saved")
    return saved[0]


def _run(block: str, directory: Path, begin: float) -> list[float]:
    """Run a block and pass its output on; return when it reported something saved."""
    command = ["/bin/bash", "-euo", "pipefail", "-c", block]
    environment = {name: os.environ[name] for name in ("HOME", "PATH")}
    saved = []
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout or ():
                sys.stdout.write(line)
                sys.stdout.flush()
                if _SAVED.search(line):
                    saved.append(time.monotonic() - begin)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    if process.returncode:
        raise FirstHourError(f"exit code {process.returncode} of: {block.strip()}")
    return saved


def main() -> int:
    """Return the exit code."""
    with tempfile.TemporaryDirectory(prefix="first-hour-") as directory:
        try:
            seconds = first_hour(ROOT, Path(directory) / "clone")
        except FirstHourError as error:
            sys.stderr.write(f"README.md: {error}\n")
            return 1
    sys.stdout.write(f"{seconds:.0f} s from git clone to the first saved checkpoint, with {os.cpu_count()} cores.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
