"""`python -m simulator demo`: replays real reclaims against a real job and judges the outcome.

A cut of a recorded trace is replayed against a real supervisor, agents, launcher and training processes. The exit code
is 0 if the judge found no failure: no step was lost, every demand was met in time, nothing was done without a reason,
and the final parameters equal those of an uninterrupted run.
"""

import argparse
import math
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from simulator.cloud.metadata import AnswerMode
from simulator.cloud.schedule import ScheduleError, SchedulePace, plan
from simulator.cloud.synthetic import BRIEF_MINIMUM, BRIEF_PACE, BRIEF_STEP_SECONDS, brief
from simulator.cloud.trace import DEFAULT_TRACE, TraceError, cut, load
from simulator.guarantees import GuaranteeCosts, timed_checkpoint, validate_schedule
from simulator.job import JobFault
from simulator.outcome import write_json
from simulator.report import report
from simulator.run_scenario import run_scenario
from simulator.runner import ReplayExitCode, ReplayScenario, enough_steps, fault_arguments, print_line, run
from simulator.services import ServedJobPlan

# The default cut starts with 24 nodes, loses five, four and one, and gets three back. With a minimum of 15, the last
# loss means a suspension and the first arrival a resume.
DEFAULT_FROM_SECONDS = 1380.0
DEFAULT_TO_SECONDS = 1860.0
DEFAULT_MIN_WORKERS = 15
DEFAULT_MAX_WORKERS = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--trace",
        type=Path,
        default=DEFAULT_TRACE,
        help="CSV file to replay, with lines `milliseconds,add|remove,node`",
    )
    option(
        "--from",
        type=float,
        default=DEFAULT_FROM_SECONDS,
        dest="start",
        metavar="S",
        help="start of the cut, in trace seconds",
    )
    option(
        "--to", type=float, default=DEFAULT_TO_SECONDS, dest="end", metavar="S", help="end of the cut, in trace seconds"
    )
    option(
        "--lead",
        type=float,
        default=SchedulePace().lead,
        metavar="S",
        help="lead time before a removal, in trace seconds",
    )
    option("--speed", type=float, default=SchedulePace().speed, help="trace seconds per second on the clock")
    option("--seed", type=int, default=1, help="seed of the scatter of notices, the withdrawal and the training data")
    option("--no-withdrawal", action="store_true", help="do not add the synthetic notice that is withdrawn")
    option("--min", type=int, default=DEFAULT_MIN_WORKERS, help="minimum number of hosts of the job")
    option("--max", type=int, default=DEFAULT_MAX_WORKERS, help="maximum number of hosts of the job")
    option("--steps", type=int, help="training steps (default: just enough to outlast the replay)")
    option("--step-seconds", type=_seconds, default=0.1, metavar="S", help="minimum duration of a step")
    option(
        "--mode",
        type=AnswerMode,
        choices=list(AnswerMode),
        default=AnswerMode.PLAIN,
        help="whether the metadata service requires a token",
    )
    option(
        "--fault", type=JobFault, choices=list(JobFault), help="damage the training on purpose; the demo must then fail"
    )
    option("--short", action="store_true", help="replay half a minute of synthetic reclaims instead of the trace")
    option("--json", type=Path, metavar="FILE", help="write all figures to this file")
    option("--keep", action="store_true", help="keep the work directory even after a success")
    option("--tls", action="store_true", help="use TLS between all processes")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    try:
        scenario = _scenario(arguments)
    except (TraceError, ScheduleError) as error:
        Console(stderr=True).print(f"python -m simulator demo: {error}", markup=False, highlight=False, soft_wrap=True)
        return ReplayExitCode.USAGE
    return run(lambda: _demo(scenario, arguments.json, console, keep=arguments.keep))


def _scenario(arguments: argparse.Namespace) -> ReplayScenario:
    if arguments.short:
        arguments.min, arguments.max, arguments.step_seconds = BRIEF_MINIMUM, len(brief().present), BRIEF_STEP_SECONDS
        schedule = plan(brief(), replace(BRIEF_PACE, seed=arguments.seed))
    else:
        pace = SchedulePace(arguments.speed, arguments.lead, arguments.seed, withdrawal=not arguments.no_withdrawal)
        schedule = plan(cut(load(arguments.trace), arguments.start, arguments.end), pace)
    if not 1 <= arguments.min <= arguments.max:
        raise ScheduleError(f"1 <= --min <= --max does not hold for {arguments.min} and {arguments.max}")
    if len(schedule.present) < arguments.min:
        raise ScheduleError(f"{len(schedule.present)} nodes at the start are below the minimum of {arguments.min}")
    with tempfile.TemporaryDirectory(prefix="elastic-demo-") as directory:
        costs = GuaranteeCosts(arguments.step_seconds, timed_checkpoint(Path(directory)))
    validate_schedule(schedule, arguments.min, costs)
    job = ServedJobPlan(
        min_workers=arguments.min,
        max_workers=arguments.max,
        steps=arguments.steps or enough_steps(schedule, arguments.min, arguments.step_seconds),
        step_seconds=arguments.step_seconds,
        seed=arguments.seed,
        job_arguments=fault_arguments(arguments.fault),
    )
    return ReplayScenario("demo", schedule, job, arguments.mode, arguments.tls)


async def _demo(scenario: ReplayScenario, json: Path | None, console: Console, *, keep: bool) -> ReplayExitCode:
    outcome = await run_scenario(scenario, console, "elastic-demo-", keep=keep, invite=True)
    console.print(report(outcome))
    if json is not None:
        write_json(json, [outcome])
    print_line(console, f"The demo took {outcome.seconds:.0f} s.")
    return ReplayExitCode.OK if outcome.ok else ReplayExitCode.FAILED
