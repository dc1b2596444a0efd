"""Runs a command of the simulator on a tree and reads how it ended and what the judge found."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from mutants.tree import Tree
from simulator.cloud.process import end, leftovers
from simulator.runner import ExitCode
from simulator.verdict import Failure

LIMIT_SECONDS = 400.0
"""Limit for one command, above the command's own limits."""

_STOP_SECONDS = 45.0
"""For the command to end its processes after SIGTERM."""


@dataclass(frozen=True, slots=True)
class Check:
    """A command of the simulator that judges the product. With `--json FILE` it writes the judge's findings."""

    name: str
    arguments: tuple[str, ...]


CHECKS = (Check("demo", ("demo", "--short")), Check("replay", ("replay", "--part", "short")))
WHOLE_DEMO = Check("whole-demo", ("demo",))
"""The same as `make demo`."""


class Ending(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    """By the judge's verdict."""
    BROKE_OFF = "broke off"
    """Without a verdict, or only with an unfinished job. That includes a crash, which proves nothing."""
    NOT_IMPORTED = "not imported"
    """No process imported a changed file, so nothing was tested."""
    HUNG = "hung"
    """It did not end by itself in time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The findings of one kind of failure: the first detail and their number."""

    kind: str
    detail: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a command.

    Attributes:
        check: The name of the check.
        ending: How it ended.
        findings: The first finding of each kind of failure, with the number of that kind.
        last_line: The last line of the command's output.
        seconds: How long it took.
    """

    check: str
    ending: Ending
    findings: tuple[Finding, ...]
    last_line: str
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether the judge noticed the defect."""
        return self.ending is Ending.FAILED


async def run(check: Check, tree: Tree, files: Sequence[str], log: Path, limit: float = LIMIT_SECONDS) -> Outcome:
    """Run a command on a tree with changed `files` and log its output. No process survives it."""
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    result = tree.root / "result.json"
    command = [sys.executable, "-m", "simulator", *check.arguments, "--json", str(result)]
    code = await _exit_code(command, tree, log, limit)
    ending, findings = _ending(code, result)
    if code is not None and not all(tree.imported(file) for file in files):
        ending = Ending.NOT_IMPORTED
    return Outcome(
        check=check.name,
        ending=ending,
        findings=findings,
        last_line=_last_line(log),
        seconds=time.monotonic() - started,
    )


async def _exit_code(command: Sequence[str], tree: Tree, log: Path, limit: float) -> int | None:
    """Run the command and return its exit code, or None if it had to be killed."""
    temporary = tree.root / "temporary"
    temporary.mkdir()
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=tree.root,
            env=tree.environment(temporary),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(limit):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        await _end(process)
        _sweep(temporary)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _sweep(temporary: Path) -> None:
    """End leftover processes of the worlds in this directory, which only a killed command leaves."""
    for world in temporary.iterdir():
        for left in leftovers(world):
            end(left.pid, world)


def _ending(code: int | None, result: Path) -> tuple[Ending, tuple[Finding, ...]]:
    """Return the ending and the judge's findings. `code` is None if the command was killed."""
    if code is None:
        return Ending.HUNG, ()
    if code == ExitCode.OK:
        return Ending.PASSED, ()
    findings = _findings(json.loads(result.read_bytes())) if result.exists() else ()
    judged = code == ExitCode.FAILED and any(finding.kind != Failure.UNFINISHED for finding in findings)
    return Ending.FAILED if judged else Ending.BROKE_OFF, findings


def _findings(result: Mapping[str, Any]) -> tuple[Finding, ...]:
    verdicts = [scenario["verdict"] for scenario in result["scenarios"] if scenario["verdict"] is not None]
    details: dict[str, list[str]] = {}
    for failure in (failure for verdict in verdicts for failure in verdict["failures"]):
        details.setdefault(failure["failure"], []).append(failure["detail"])
    return tuple(Finding(kind, found[0], len(found)) for kind, found in details.items())


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else ""
