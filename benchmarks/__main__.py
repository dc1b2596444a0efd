"""`python -m benchmarks run` and `python -m benchmarks page`."""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks import results, table
from benchmarks.machine import machine
from benchmarks.results import Outcome, Results
from benchmarks.scenarios import (
    check_alive,
    cluster,
    fanout,
    footprint,
    metrics,
    page,
    path,
    reconnection,
    scale,
    tenants,
    webhook,
)
from simulator.runner import ExitCode, run

RESULTS = Path(__file__).parent / "results" / "latest.json"
PAGE = Path(__file__).parent.parent / "docs" / "maintainers" / "benchmarks.md"


class Scenario(Protocol):
    """What a module of `benchmarks.scenarios` has; `root` is an empty directory of its own."""

    async def __call__(self, root: Path, *, short: bool) -> Outcome | tuple[Outcome, ...]:
        """Does it and says what was measured, in one table or several."""


SCENARIOS: Mapping[str, Scenario] = {
    "path": path.run,
    "fanout": fanout.run,
    "measuring": metrics.run,
    "storm": reconnection.run,
    "scale": scale.run,
    "cluster": cluster.run,
    "calls": check_alive.run,
    "webhook": webhook.run,
    "page": page.run,
    "tenants": tenants.run,
    "footprint": footprint.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The commands; returns the exit code. SIGTERM ends what was started, as Ctrl-C does."""
    options = _parser().parse_args(arguments)
    match options.command:
        case "page":
            _page(options.results)
        case _:
            return run(partial(_run, options))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks")
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="measure, and print what was measured")
    runs.add_argument("--short", action="store_true", help="everything small: whether it works, not how fast it is")
    runs.add_argument("--only", action="append", choices=list(SCENARIOS), help="this scenario; may be repeated")
    runs.add_argument("--results", type=Path, help="write the results here, as JSON; by default only a full run's are")
    pages = commands.add_parser("page", help="write results into docs/maintainers/benchmarks.md")
    pages.add_argument("--results", type=Path, default=RESULTS)
    return parser


async def _run(arguments: argparse.Namespace) -> ExitCode:
    outcomes: list[Outcome] = []
    for name in arguments.only or SCENARIOS:
        sys.stderr.write(f"{name} …\n")
        with tempfile.TemporaryDirectory(prefix="benchmark-") as root:
            measured = await SCENARIOS[name](Path(root), short=arguments.short)
        for outcome in measured if isinstance(measured, tuple) else (measured,):
            outcomes.append(outcome)
            sys.stdout.write(f"{table.outcome_table(outcome)}\n")
            sys.stdout.flush()
    found = Results(machine=machine(), short=arguments.short, outcomes=tuple(outcomes))
    target = arguments.results if arguments.results is not None or arguments.short or arguments.only else RESULTS
    if target is not None:
        results.write(target, found)
    return ExitCode.OK


def _page(source: Path) -> None:
    PAGE.write_text(table.page(PAGE.read_text(encoding="utf-8"), results.read(source)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
