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
from benchmarks.results import Results, ScenarioOutcome
from benchmarks.scenarios import (
    agreement,
    check_alive,
    cliff,
    cluster,
    deciding,
    fanout,
    footprint,
    goodput,
    metrics,
    operator,
    page,
    path,
    reconnection,
    recording,
    scale,
    startup,
    tenants,
    webhook,
)
from simulator.runner import ReplayExitCode, run

RESULTS = Path(__file__).parent / "results" / "latest.json"
PAGE = Path(__file__).parent.parent / "docs" / "maintainers" / "benchmarks.md"


class BenchmarkScenario(Protocol):
    """The `run` function of a module in `benchmarks.scenarios`. `root` is an empty directory."""

    async def __call__(self, root: Path, *, short: bool) -> ScenarioOutcome | tuple[ScenarioOutcome, ...]:
        """Run the scenario and return one table or several."""


SCENARIOS: Mapping[str, BenchmarkScenario] = {
    "path": path.run,
    "fanout": fanout.run,
    "agreement": agreement.run,
    "measuring": metrics.run,
    "storm": reconnection.run,
    "scale": scale.run,
    "cluster": cluster.run,
    "startup": startup.run,
    "operator": operator.run,
    "deciding": deciding.run,
    "calls": check_alive.run,
    "webhook": webhook.run,
    "page": page.run,
    "recording": recording.run,
    "tenants": tenants.run,
    "footprint": footprint.run,
    "goodput": goodput.run,
    "cliff": cliff.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. SIGTERM ends all started processes, as Ctrl-C does."""
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
    runs = commands.add_parser("run", help="measure and print the results")
    runs.add_argument("--short", action="store_true", help="run everything small, to check that it works")
    runs.add_argument(
        "--only", action="append", choices=list(SCENARIOS), help="run only this scenario; may be repeated"
    )
    runs.add_argument("--results", type=Path, help="write the results to this JSON file (default: only for a full run)")
    runs.add_argument(
        "--update", action="store_true", help="keep the results of the other scenarios, which are not measured again"
    )
    pages = commands.add_parser("page", help="write the results into docs/maintainers/benchmarks.md")
    pages.add_argument("--results", type=Path, default=RESULTS)
    return parser


async def _run(arguments: argparse.Namespace) -> ReplayExitCode:
    outcomes: list[ScenarioOutcome] = []
    for name in arguments.only or SCENARIOS:
        sys.stderr.write(f"{name} …\n")
        with tempfile.TemporaryDirectory(prefix="benchmark-") as root:
            measured = await SCENARIOS[name](Path(root), short=arguments.short)
        for outcome in measured if isinstance(measured, tuple) else (measured,):
            outcomes.append(outcome)
            sys.stdout.write(f"{table.outcome_table(outcome)}\n")
            sys.stdout.flush()
    found = Results(machine=machine(), short=arguments.short, outcomes=tuple(outcomes))
    is_partial = arguments.short or (arguments.only and not arguments.update)
    target = arguments.results if arguments.results is not None or is_partial else RESULTS
    if target is not None:
        results.write(
            target, results.updated(results.read(target), found, list(SCENARIOS)) if arguments.update else found
        )
    return ReplayExitCode.OK


def _page(source: Path) -> None:
    PAGE.write_text(table.page(PAGE.read_text(encoding="utf-8"), results.read(source)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
