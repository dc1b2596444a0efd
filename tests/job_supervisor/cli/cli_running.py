"""Runs the `job-supervisor` command as a process, or in the test's own one."""

import asyncio
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

from job_supervisor.cli import command
from job_supervisor.cli.arguments import command_first, parser
from job_supervisor.cli.errors import CliError
from job_supervisor.cli.output import complain
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
"""As `run`, where no event loop runs."""


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    asked = ("JOB_SUPERVISOR_", "SUPERVISOR_CLI_", "KUBE")
    return {**{name: text for name, text in os.environ.items() if not name.startswith(asked)}, **changes}


@asynccontextmanager
async def started(
    *arguments: str | Path, cwd: Path | None = None, stdin: int = asyncio.subprocess.DEVNULL, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Starts a command, which ends with the context at the latest. Without `stdin` it cannot ask anybody."""
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


async def run_process(
    *arguments: str | Path, cwd: Path | None = None, stdin: int = asyncio.subprocess.DEVNULL, **variables: str
) -> Said:
    async with asyncio.timeout(PATIENCE), started(*arguments, cwd=cwd, stdin=stdin, **variables) as process:
        return await ended(process)


async def run(*arguments: str | Path, **variables: str) -> Said:
    """Does the same as `run_process` in the test's event loop.

    A process takes a third of a second to import the command.
    """
    with patch.object(os, "environ", environment({"HOME": "/nonexistent", **variables})), _captured() as (out, err):
        try:
            given = parser("job-supervisor").parse_args(command_first([str(each) for each in arguments]))
            async with asyncio.timeout(PATIENCE):
                code = int(await command._run(given, plugin=False))
        except CliError as error:
            complain(str(error))
            code = error.code
        except SystemExit as error:
            code = int(error.code or 0)
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    return Said(code, out.getvalue(), err.getvalue())


_is_of_the_command = ContextVar("_is_of_the_command", default=False)


class _CommandStream(io.StringIO):
    """Keeps what the command writes. The supervisor beside it logs to the stream that was there before."""

    def __init__(self, before: TextIO) -> None:
        super().__init__()
        self._before = before

    def write(self, text: str) -> int:
        return super().write(text) if _is_of_the_command.get() else self._before.write(text)


@contextmanager
def _captured() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """The standard output and error of the present task; one command at a time."""
    out, err = _CommandStream(sys.stdout), _CommandStream(sys.stderr)
    mark = _is_of_the_command.set(True)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield out, err
    finally:
        _is_of_the_command.reset(mark)


async def ended(process: asyncio.subprocess.Process) -> Said:
    """Wait for the command's end and return its output."""
    out, err = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())


async def line(process: asyncio.subprocess.Process, part: str, stream: asyncio.StreamReader | None = None) -> str:
    """Returns the next line with this text in the output of the command, or in another stream of it."""
    stream = stream or process.stdout
    assert stream is not None
    async with asyncio.timeout(PATIENCE):
        while data := await stream.readline():
            if part in data.decode():
                return data.decode()
    raise AssertionError(f"it ended before it said {part!r}")


def interrupt(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGINT)
