"""`python -m mutants`. See --help."""

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
from simulator.runner import ReplayExitCode, print_line, run

LOG_COLUMNS = 180


class MutantsPart(StrEnum):
    ALL = "all"
    CI = "ci"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the selected mutants. Returns 0 if every check caught each of them and passed the unbroken product."""
    options = _parser().parse_args(arguments)
    console = Console()
    console = console if console.is_terminal else Console(width=LOG_COLUMNS)
    chosen = _chosen(MutantsPart(options.part), options.only or [])
    if options.list:
        for line in report.listed(chosen):
            print_line(console, line)
        return ReplayExitCode.OK
    logs = options.logs or Path(tempfile.mkdtemp(prefix="mutants-"))
    checks = (WHOLE_DEMO,) if options.whole_demo else CHECKS
    return run(lambda: _play(chosen, Setting(logs=logs, checks=checks, jobs=options.jobs), console))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mutants",
        description="Breaks the product on purpose; the demo and the replay must fail for each defect.",
    )
    option = parser.add_argument
    option(
        "--part",
        type=MutantsPart,
        choices=list(MutantsPart),
        default=MutantsPart.ALL,
        help="which mutants (default: all)",
    )
    option(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=[mutant.name for mutant in CATALOGUE],
        help="try only these mutants",
    )
    option("--whole-demo", action="store_true", help="run the whole `make demo` instead of both short checks")
    option("--list", action="store_true", help="only print the mutants")
    option("--jobs", type=_count, default=2, metavar="N", help="number of parallel commands (default: 2)")
    option("--logs", type=Path, metavar="DIR", help="folder for the output of each command (default: a new one)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _chosen(part: MutantsPart, names: Sequence[str]) -> list[Mutant]:
    if names:
        return [mutant for mutant in CATALOGUE if mutant.name in names]
    return [mutant for mutant in CATALOGUE if part is MutantsPart.ALL or mutant.in_ci]


async def _play(chosen: Sequence[Mutant], setting: Setting, console: Console) -> ReplayExitCode:
    started = time.monotonic()

    def on_result(trials: Trials) -> None:
        for line in report.lines(trials):
            print_line(console, line)

    try:
        found = await play(chosen, setting, on_result)
    except (DoesNotApplyError, ForeignCodeError, SyntaxError) as error:
        print_line(console, f"FAILED: {error}")
        return ReplayExitCode.FAILED
    console.print(report.table(found))
    print_line(console, report.conclusion(found, time.monotonic() - started))
    ok = all(trials.ok for trials in found)
    print_line(console, f"The output of each command is in {setting.logs}")
    return ReplayExitCode.OK if ok else ReplayExitCode.FAILED


if __name__ == "__main__":
    sys.exit(main())
