"""`python -m simulator replay`: replays whole and synthetic traces against real jobs and judges each outcome.

The exit code is 0 if in every scenario no step was lost, no stop was false, every group that left the job enough hosts
caused one change of the exclusions, and the final parameters equal those of an uninterrupted run.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from simulator.cloud.schedule import ScheduleError
from simulator.cloud.trace import DEFAULT_TRACE, TraceError
from simulator.guarantees import GuaranteeCosts, timed_checkpoint
from simulator.job import JobFault
from simulator.outcome import ReplayOutcome, lines, table, write_json
from simulator.run_scenario import run_scenario
from simulator.runner import ReplayExitCode, ReplayScenario, print_line, run
from simulator.scenarios import STEP_SECONDS, ScenarioOptions, ScenarioPart, scenarios

LOG_COLUMNS = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = ScenarioOptions()
    option = parser.add_argument
    option(
        "--part",
        type=ScenarioPart,
        choices=list(ScenarioPart),
        default=default.part,
        help="the scenarios to replay (default: all)",
    )
    option(
        "--trace",
        type=Path,
        default=DEFAULT_TRACE,
        help="CSV file to replay, with lines `milliseconds,add|remove,node`",
    )
    option(
        "--seeds",
        type=int,
        nargs="+",
        default=list(default.seeds),
        metavar="N",
        help="seeds of the synthetic scenarios",
    )
    option(
        "--leads",
        type=_positive,
        nargs="+",
        default=list(default.leads),
        metavar="S",
        help="lead times, in trace seconds",
    )
    option("--gap", type=_positive, metavar="S", help="longest idle stretch, in trace seconds (default: 0.8 leads)")
    option("--speed", type=_positive, help="trace seconds per second on the clock (default: lead / 7.5)")
    option("--step-seconds", type=_positive, default=STEP_SECONDS, metavar="S", help="minimum duration of a step")
    option(
        "--fault",
        type=JobFault,
        choices=list(JobFault),
        help="damage the training on purpose; the replay must then fail",
    )
    option("--json", type=Path, metavar="FILE", help="write all figures to this file")
    option("--keep", action="store_true", help="keep the work directories after a success")


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def main(arguments: argparse.Namespace) -> int:
    console = _console()
    try:
        chosen = _chosen(arguments)
    except (TraceError, ScheduleError) as error:
        print_line(Console(stderr=True), f"python -m simulator replay: {error}")
        return ReplayExitCode.USAGE
    return run(lambda: _replay(chosen, arguments.json, console, keep=arguments.keep))


def _console() -> Console:
    console = Console()
    # A pipe has no width; the table needs more than 80 columns.
    return console if console.is_terminal else Console(width=LOG_COLUMNS)


def _chosen(arguments: argparse.Namespace) -> list[ReplayScenario]:
    options = ScenarioOptions(
        part=arguments.part,
        trace=arguments.trace,
        seeds=tuple(arguments.seeds),
        leads=tuple(arguments.leads),
        gap=arguments.gap,
        speed=arguments.speed,
        step_seconds=arguments.step_seconds,
        fault=arguments.fault,
    )
    with tempfile.TemporaryDirectory(prefix="elastic-replay-") as directory:
        costs = GuaranteeCosts(options.step_seconds, timed_checkpoint(Path(directory)))
    return scenarios(options, costs)


async def _replay(
    chosen: Sequence[ReplayScenario], json: Path | None, console: Console, *, keep: bool
) -> ReplayExitCode:
    outcomes: list[ReplayOutcome] = []
    for number, scenario in enumerate(chosen, start=1):
        print_line(
            console,
            f"Scenario {number} of {len(chosen)}: {scenario.name}, {scenario.schedule.seconds:.0f} s on the clock",
        )
        outcomes.append(await run_scenario(scenario, console, "elastic-replay-", keep=keep))
        if json is not None:
            write_json(json, outcomes)
    console.print(table(outcomes))
    for line in (line for outcome in outcomes for line in lines(outcome)):
        print_line(console, line)
    return ReplayExitCode.OK if all(outcome.ok for outcome in outcomes) else ReplayExitCode.FAILED
