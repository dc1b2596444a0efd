"""Running a command of the simulator on a tree: how it ended, and the judge's findings."""

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
"""For one command; its own bounds on time are shorter."""

_STOP_SECONDS = 45.0
"""For the command to end its processes in order after SIGTERM."""


@dataclass(frozen=True, slots=True)
class Check:
    """A command of the simulator that judges the product; with `--json FILE` it writes what the judge found there."""

    name: str
    arguments: tuple[str, ...]


CHECKS = (Check("demo", ("demo", "--short")), Check("replay", ("replay", "--part", "short")))
WHOLE_DEMO = Check("whole-demo", ("demo",))
"""Runs the same as `make demo`."""


class Ending(StrEnum):
    """How a command ended."""

    PASSED = "passed"
    FAILED = "failed"
    """By the judge's verdict."""
    BROKE_OFF = "broke off"
    """Without a verdict, or with none but that the job is unfinished. So does a crash: it says nothing of the judge."""
    NOT_IMPORTED = "not imported"
    """A changed file was not imported by any process, so nothing was tried."""
    HUNG = "hung"
    """It did not end by itself."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The judge's findings of one kind of failure: the first detail and the number."""

    kind: str
    detail: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a command.

    Attributes:
        check: Which command.
        ending: How it ended.
        findings: The judge's first finding of each kind of failure, and how many there are of that kind.
        said: The last line of the command's output.
        seconds: How long it took.
    """

    check: str
    ending: Ending
    findings: tuple[Finding, ...]
    said: str
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether the judge has noticed the defect."""
        return self.ending is Ending.FAILED


async def run(check: Check, tree: Tree, files: Sequence[str], log: Path, limit: float = LIMIT_SECONDS) -> Outcome:
    """Run a command on a tree whose `files` were changed, its output into `log`; nothing outlives it."""
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
        said=_last_line(log),
        seconds=time.monotonic() - started,
    )


async def _exit_code(command: Sequence[str], tree: Tree, log: Path, limit: float) -> int | None:
    """Of the command; None where it had to be ended."""
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
    """End what the worlds below this directory have left; only a command that was killed leaves anything."""
    for world in temporary.iterdir():
        for left in leftovers(world):
            end(left.pid, world)


def _ending(code: int | None, result: Path) -> tuple[Ending, tuple[Finding, ...]]:
    """Read a command's exit code and result, with the judge's findings; None: the runner ended it."""
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
    for failure in (each for verdict in verdicts for each in verdict["failures"]):
        details.setdefault(failure["failure"], []).append(failure["detail"])
    return tuple(Finding(kind, found[0], len(found)) for kind, found in details.items())


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else ""
