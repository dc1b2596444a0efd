"""`python -m mutants`: explains itself with --help."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from rich.console import Console

from mutants import report
from mutants.catalogue import CATALOGUE
from mutants.mutant import DoesNotApplyError, Mutant
from mutants.suite import Setting, Trials, play
from mutants.tree import ForeignCodeError
from mutants.trial import CHECKS, WHOLE_DEMO
from simulator.runner import ExitCode, print_line, run

LOG_COLUMNS = 180


class Part(StrEnum):
    """Which mutants are tried."""

    ALL = "all"
    CI = "ci"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants that were asked for; 0 where every check caught each of them and passed the unbroken product."""
    given = _parser().parse_args(arguments)
    console = Console()
    console = console if console.is_terminal else Console(width=LOG_COLUMNS)
    chosen = _chosen(Part(given.part), given.only or [])
    if given.list:
        for line in report.listed(chosen):
            print_line(console, line)
        return ExitCode.OK
    logs = given.logs or Path(tempfile.mkdtemp(prefix="mutants-"))
    checks = (WHOLE_DEMO,) if given.whole_demo else CHECKS
    return run(lambda: _play(chosen, Setting(logs=logs, checks=checks, jobs=given.jobs), console))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mutants",
        description="Breaks the product on purpose; the demo and the replay must fail for each defect.",
    )
    option = parser.add_argument
    option("--part", type=Part, choices=list(Part), default=Part.ALL, help="which mutants (default: all)")
    option("--only", nargs="+", metavar="NAME", choices=[each.name for each in CATALOGUE], help="these mutants alone")
    option("--whole-demo", action="store_true", help="run `make demo` as it is, in the place of both short forms")
    option("--list", action="store_true", help="print the mutants and try none")
    option("--jobs", type=_count, default=2, metavar="N", help="commands at a time (default: 2)")
    option("--logs", type=Path, metavar="DIR", help="where the output of each command goes (default: a new folder)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _chosen(part: Part, names: Sequence[str]) -> list[Mutant]:
    if names:
        return [mutant for mutant in CATALOGUE if mutant.name in names]
    return [mutant for mutant in CATALOGUE if part is Part.ALL or mutant.in_ci]


async def _play(chosen: Sequence[Mutant], setting: Setting, console: Console) -> ExitCode:
    started = time.monotonic()

    def tell(trials: Trials) -> None:
        for line in report.lines(trials):
            print_line(console, line)

    try:
        found = await play(chosen, setting, tell)
    except (DoesNotApplyError, ForeignCodeError, SyntaxError) as error:
        print_line(console, f"FAILED: {error}")
        return ExitCode.FAILED
    console.print(report.table(found))
    print_line(console, report.conclusion(found, time.monotonic() - started))
    ok = all(trials.ok for trials in found)
    print_line(console, f"The output of each command is in {setting.logs}")
    return ExitCode.OK if ok else ExitCode.FAILED


if __name__ == "__main__":
    sys.exit(main())
