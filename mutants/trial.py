"""Runs a command of the simulator, or a test, on a tree and reads how it ended and what it found."""

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
from xml.etree import ElementTree as ET

from mutants.mutant import FailingTest, Mutant
from mutants.tree import Tree
from simulator.cloud.process import end, leftovers
from simulator.runner import ReplayExitCode
from simulator.verdict import Failure

LIMIT_SECONDS = 400.0
"""Limit for one command, above the command's own limits."""

_STOP_SECONDS = 45.0
"""For the command to end its processes after SIGTERM."""


@dataclass(frozen=True, slots=True)
class MutantCheck:
    """A command of the simulator that judges the product. With `--json FILE` it writes the judge's findings."""

    name: str
    arguments: tuple[str, ...]


CHECKS = (
    MutantCheck("demo", ("demo", "--short")),
    MutantCheck("replay", ("replay", "--part", "short")),
    MutantCheck("agreed", ("replay", "--part", "agreed")),
)
WHOLE_DEMO = MutantCheck("whole-demo", ("demo",))
"""The same as `make demo`."""


_OTHER_ASSERTION = "other assertion"
_ASSERTIONS = ("AssertionError", "assert ")
_MAX_DETAIL = 300
"""Characters of an assertion's message in the report; the command's output has all of it."""


class Ending(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    """By the judge's verdict, which names a demand that the mutant must violate, or by the test's assertion."""
    OTHER_SYMPTOM = "other symptom"
    """By other demands or assertions only. The defect is not the one that the mutant describes."""
    CRASHED = "crashed"
    """A process of the product logged an error of programming, such as a NameError, or one ended a test."""
    BROKE_OFF = "broke off"
    """Without a verdict, or only with an unfinished job. That includes a crash, which proves nothing."""
    NOT_IMPORTED = "not imported"
    """No process imported a changed file, so nothing was tested."""
    HUNG = "hung"
    """It did not end by itself in time."""


@dataclass(frozen=True, slots=True)
class MutantFinding:
    """The findings of one kind of failure: the first detail and their number."""

    kind: str
    detail: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantOutcome:
    """The result of a command.

    Attributes:
        check: The name of the check.
        ending: How it ended.
        findings: The first finding of each kind of failure, with the number of that kind.
        crashes: The errors of the product's own code.
        last_line: The last line of the command's output.
        seconds: How long it took.
    """

    check: str
    ending: Ending
    findings: tuple[MutantFinding, ...]
    last_line: str
    seconds: float
    crashes: tuple[str, ...] = ()

    @property
    def caught(self) -> bool:
        """Whether the judge noticed the defect."""
        return self.ending is Ending.FAILED


async def run(
    check: MutantCheck | FailingTest, tree: Tree, mutant: Mutant, log: Path, limit: float = LIMIT_SECONDS
) -> MutantOutcome:
    """Run a command on the tree of a mutant and log its output. No process survives it."""
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    result = tree.root / "result"
    code = await _exit_code([sys.executable, "-m", *_module(check, result)], tree, log, limit)
    judged = _tested(result, check.symptom) if isinstance(check, FailingTest) else _judged(result)
    ending = _ending(code, judged, mutant)
    if code is not None and not all(tree.imported(file) for file in mutant.files):
        ending = Ending.NOT_IMPORTED
    return MutantOutcome(
        check=check.name,
        ending=ending,
        findings=judged.findings,
        last_line=_last_line(log),
        seconds=time.monotonic() - started,
        crashes=judged.crashes,
    )


def _module(check: MutantCheck | FailingTest, result: Path) -> Sequence[str]:
    """Return the module to run, with its arguments. It writes what it has found to `result`."""
    if isinstance(check, FailingTest):
        return ["pytest", "-vv", "-p", "no:cacheprovider", f"--junit-xml={result}", check.id]
    return ["simulator", *check.arguments, "--json", str(result)]


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


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a command has written: nothing if it broke off earlier."""

    findings: tuple[MutantFinding, ...] = ()
    crashes: tuple[str, ...] = ()


def _ending(code: int | None, judged: _Judged, mutant: Mutant) -> Ending:
    """Return how a command ended. `code` is None if it was killed."""
    kinds = {finding.kind for finding in judged.findings}
    if code is None:
        return Ending.HUNG
    if code == ReplayExitCode.OK:
        return Ending.PASSED
    if judged.crashes:
        return Ending.CRASHED
    if code != ReplayExitCode.FAILED or not kinds - {Failure.UNFINISHED}:
        return Ending.BROKE_OFF
    return Ending.FAILED if kinds & mutant.symptoms else Ending.OTHER_SYMPTOM


def _judged(result: Path) -> _Judged:
    if not result.exists():
        return _Judged()
    scenarios = json.loads(result.read_bytes())["scenarios"]
    return _Judged(_findings(scenarios), tuple(crash for scenario in scenarios for crash in scenario["crashes"]))


def _tested(result: Path, symptom: str) -> _Judged:
    """Read what pytest has written: assertions are findings, and all else that ends a test is a crash."""
    if not result.exists():
        return _Judged()
    root = ET.parse(result).getroot()  # noqa: S314 - pytest has just written it.
    ended = [*root.iter("failure"), *root.iter("error")]
    asserted = [each for each in ended if each.tag == "failure" and _summary(each).startswith(_ASSERTIONS)]
    details: dict[str, list[str]] = {}
    for each in asserted:
        message = _message(each)
        details.setdefault(symptom if symptom in message else _OTHER_ASSERTION, []).append(message[:_MAX_DETAIL])
    return _Judged(_firsts(details), tuple(_summary(each)[:_MAX_DETAIL] for each in ended if each not in asserted))


def _summary(ended: ET.Element) -> str:
    return ended.get("message", "")


def _message(ended: ET.Element) -> str:
    """Return the whole message on one line. The summary has its first lines only."""
    lines = (ended.text or "").splitlines()
    return " ".join(" ".join(line[1:] for line in lines if line.startswith("E ")).split())


def _findings(scenarios: Sequence[Mapping[str, Any]]) -> tuple[MutantFinding, ...]:
    verdicts = [scenario["verdict"] for scenario in scenarios if scenario["verdict"] is not None]
    details: dict[str, list[str]] = {}
    for failure in (failure for verdict in verdicts for failure in verdict["failures"]):
        details.setdefault(failure["failure"], []).append(failure["detail"])
    return _firsts(details)


def _firsts(details: Mapping[str, Sequence[str]]) -> tuple[MutantFinding, ...]:
    return tuple(MutantFinding(kind, found[0], len(found)) for kind, found in details.items())


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else ""
