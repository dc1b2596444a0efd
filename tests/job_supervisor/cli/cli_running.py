"""Runs the `job-supervisor` command as a process, or in the test's own one."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testkit.waiting import PATIENCE


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


RunHere = Callable[..., Said]
"""As `run`, of the command in the test's own process."""


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    asked = ("JOB_SUPERVISOR_", "SUPERVISOR_CLI_", "KUBE")
    return {**{name: text for name, text in os.environ.items() if not name.startswith(asked)}, **changes}


@asynccontextmanager
async def started(
    *arguments: str | Path, cwd: Path | None = None, stdin: int = asyncio.subprocess.DEVNULL, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command that runs; ended with the context if it still does. Without `stdin`, nobody is there to be asked."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "job_supervisor.cli.command",
        *map(str, arguments),
        cwd=cwd,
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment({"HOME": "/nonexistent", "PYTHONPATH": os.pathsep.join(sys.path), **variables}),
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


async def run(
    *arguments: str | Path, cwd: Path | None = None, stdin: int = asyncio.subprocess.DEVNULL, **variables: str
) -> Said:
    async with asyncio.timeout(PATIENCE), started(*arguments, cwd=cwd, stdin=stdin, **variables) as process:
        return await ended(process)


async def ended(process: asyncio.subprocess.Process) -> Said:
    """Wait for the command's end and return its output."""
    out, err = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())


async def line(process: asyncio.subprocess.Process, part: str, stream: asyncio.StreamReader | None = None) -> str:
    """The next line of its output, or of another stream of its, that has that in it."""
    stream = stream or process.stdout
    assert stream is not None
    async with asyncio.timeout(PATIENCE):
        while data := await stream.readline():
            if part in data.decode():
                return data.decode()
    raise AssertionError(f"it ended before it said {part!r}")


def interrupt(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGINT)
