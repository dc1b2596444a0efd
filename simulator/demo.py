"""`python -m simulator demo`: real reclaims against a real job, and a verdict from the truth.

A cut of a recorded trace is replayed against supervisor, agents, launcher and training processes, all of them real. The
exit code is 0 when no step was lost, no stop was false and the parameters equal those of an uninterrupted run.
"""

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from simulator.cloud.metadata import Mode
from simulator.cloud.process import ProcessEnded, TooLate
from simulator.cloud.schedule import Pace, ScheduleError, plan
from simulator.cloud.trace import DEFAULT_TRACE, TraceError, cut, load
from simulator.harness import ProcessesLeft
from simulator.job import Fault
from simulator.report import report
from simulator.services import JobPlan
from simulator.stage import ExitCode, Scene, enough_steps, faulty, play, run, say, workplace

# The default cut has 24 nodes, loses five, four and one, and gets three back: with a minimum of 15 the last loss means
# a suspension, and the first arrival a resume.
DEFAULT_FROM_SECONDS = 1380.0
DEFAULT_TO_SECONDS = 1860.0
DEFAULT_MIN_WORKERS = 15
DEFAULT_MAX_WORKERS = 24


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    scene: Scene
    keep: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what can be asked for."""
    option = parser.add_argument
    option("--trace", type=Path, default=DEFAULT_TRACE, help="what is replayed: milliseconds,add|remove,node a line")
    option("--from", type=float, default=DEFAULT_FROM_SECONDS, dest="start", metavar="S", help="start, s of the trace")
    option("--to", type=float, default=DEFAULT_TO_SECONDS, dest="end", metavar="S", help="end, s of the trace")
    option("--lead", type=float, default=Pace().lead, metavar="S", help="notice before a removal, s of the trace")
    option("--speed", type=float, default=Pace().speed, help="seconds of the trace per second on the clock")
    option("--seed", type=int, default=1, help="of the scatter of notices, the withdrawal and the training data")
    option("--no-withdrawal", action="store_true", help="do without the made-up notice that is withdrawn")
    option("--min", type=int, default=DEFAULT_MIN_WORKERS, help="fewest hosts that the job can train on")
    option("--max", type=int, default=DEFAULT_MAX_WORKERS, help="most hosts that the job uses")
    option("--steps", type=int, help="training steps (default: just enough to outlive the replay)")
    option("--step-seconds", type=_seconds, default=0.1, metavar="S", help="what a step takes at least")
    option("--mode", type=Mode, choices=list(Mode), default=Mode.PLAIN, help="whether metadata want a token")
    option("--fault", type=Fault, choices=list(Fault), help="damage the training on purpose: the demo must then fail")
    option("--keep", action="store_true", help="keep the work directory even after a success")
    option("--tls", action="store_true", help="with TLS between all parts")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def main(given: argparse.Namespace) -> int:
    """Run the demo and return its exit code."""
    console = Console()
    try:
        options = _options(given)
    except (TraceError, ScheduleError) as error:
        Console(stderr=True).print(f"python -m simulator demo: {error}", markup=False, highlight=False, soft_wrap=True)
        return ExitCode.USAGE
    return run(lambda: _demo(options, console))


def _options(given: argparse.Namespace) -> Options:
    pace = Pace(given.speed, given.lead, given.seed, withdrawal=not given.no_withdrawal)
    schedule = plan(cut(load(given.trace), given.start, given.end), pace)
    if not 1 <= given.min <= given.max:
        raise ScheduleError(f"1 <= --min <= --max does not hold for {given.min} and {given.max}")
    if len(schedule.present) < given.min:
        raise ScheduleError(f"{len(schedule.present)} nodes at the start are below the minimum of {given.min}")
    job = JobPlan(
        min_workers=given.min,
        max_workers=given.max,
        steps=given.steps or enough_steps(schedule, given.min, given.step_seconds),
        step_seconds=given.step_seconds,
        seed=given.seed,
        job_arguments=faulty(given.fault),
    )
    return Options(Scene(schedule, job, given.mode, given.tls), given.keep)


async def _demo(options: Options, console: Console) -> ExitCode:
    started = time.monotonic()
    with workplace("elastic-demo-", console) as place:
        try:
            verdict = (await play(options.scene, place.root, console, invite=True)).verdict
        except (ProcessEnded, TooLate, ProcessesLeft) as error:
            say(console, f"FAILED: {error}")
            return ExitCode.FAILED
        console.print(report(verdict))
        place.keep = options.keep or not verdict.ok
    say(console, f"The demo took {time.monotonic() - started:.0f} s.")
    return ExitCode.OK if verdict.ok else ExitCode.FAILED
