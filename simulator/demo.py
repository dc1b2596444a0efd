"""`python -m simulator demo`: real reclaims against a real job, and a verdict from the truth.

A cut of a recorded trace is replayed against supervisor, agents, launcher and training processes, all of them real. The
exit code is 0 when no step was lost, no stop was false and the parameters equal those of an uninterrupted run.
"""

import argparse
import asyncio
import math
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from rich.console import Console

from simulator.cloud.metadata import Mode
from simulator.cloud.process import ProcessEnded, TooLate
from simulator.cloud.schedule import Pace, Schedule, ScheduleError, plan, training_seconds
from simulator.cloud.trace import DEFAULT_TRACE, TraceError, cut, load
from simulator.harness import ProcessesLeft, World, world
from simulator.job import Fault
from simulator.report import report
from simulator.services import JobPlan, JobProcess
from simulator.verdict import Verdict
from simulator.view import Viewer

# The default cut has 24 nodes, loses five, four and one, and gets three back: with a minimum of 15 the last loss means
# a suspension, and the first arrival a resume.
DEFAULT_FROM_SECONDS = 1380.0
DEFAULT_TO_SECONDS = 1860.0
DEFAULT_MIN_WORKERS = 15
DEFAULT_MAX_WORKERS = 24
# More steps than the replay leaves time for: a job that is done before the replay shows nothing of the rest.
OUTLIVE_SECONDS = 1.0
# What the job may take after the scenario for the steps it still has to do, on a slow machine.
PATIENCE_SECONDS = 60.0


class ExitCode(IntEnum):
    """How the demo ends."""

    OK = 0
    FAILED = 1
    USAGE = 64
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    schedule: Schedule
    job: JobPlan
    mode: Mode
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
    try:
        return asyncio.run(_interruptible(options, console))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _options(given: argparse.Namespace) -> Options:
    pace = Pace(given.speed, given.lead, given.seed, withdrawal=not given.no_withdrawal)
    schedule = plan(cut(load(given.trace), given.start, given.end), pace)
    if not 1 <= given.min <= given.max:
        raise ScheduleError(f"1 <= --min <= --max does not hold for {given.min} and {given.max}")
    if len(schedule.present) < given.min:
        raise ScheduleError(f"{len(schedule.present)} nodes at the start are below the minimum of {given.min}")
    ideal = (training_seconds(schedule, given.min) + OUTLIVE_SECONDS) / given.step_seconds
    job = JobPlan(
        min_workers=given.min,
        max_workers=given.max,
        steps=given.steps or math.ceil(ideal),
        step_seconds=given.step_seconds,
        seed=given.seed,
        job_arguments=("--fault", given.fault) if given.fault else (),
    )
    return Options(schedule, job, given.mode, given.keep)


async def _interruptible(options: Options, console: Console) -> ExitCode:
    # A SIGTERM ends the world in order, as Ctrl-C does.
    this = asyncio.current_task()
    if this is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    with suppress(asyncio.CancelledError):
        return await _demo(options, console)
    return ExitCode.INTERRUPTED


async def _demo(options: Options, console: Console) -> ExitCode:
    root = Path(tempfile.mkdtemp(prefix="elastic-demo-"))
    started = time.monotonic()
    code = ExitCode.FAILED
    try:
        verdict = await _run(options, root, console)
        console.print(report(verdict))
        code = ExitCode.OK if verdict.ok else ExitCode.FAILED
    except (ProcessEnded, TooLate, ProcessesLeft) as error:
        _say(console, f"FAILED: {error}")
    finally:
        if code is ExitCode.OK and not options.keep:
            shutil.rmtree(root)
        else:
            _say(console, f"Logs and events are kept in {root}")
    _say(console, f"The demo took {time.monotonic() - started:.0f} s.")
    return code


async def _run(options: Options, root: Path, console: Console) -> Verdict:
    present = options.schedule.present
    _say(console, f"Starting a supervisor and {len(present)} nodes with their agents")
    async with world(root, present, options.mode) as one, _shown(one, console):
        job = one.start_job(options.job)
        await one.until_training(job, min(len(present), options.job.max_workers))
        await _replayed(one, job, options)
    # Judged when all is over: a process that outlives its stop has failed the demo before this.
    return one.verdict(job)


async def _replayed(one: World, job: JobProcess, options: Options) -> None:
    """Replay the schedule while the job trains, and wait for the job's end."""
    replay = asyncio.create_task(one.replay(options.schedule), name="replay")
    working = options.job.steps * options.job.step_seconds
    try:
        code = await job.wait(options.schedule.seconds + working + PATIENCE_SECONDS)
        if code != 0:
            raise ProcessEnded(f"the job ended with {code}:\n{job.child.tail()}")
        if not replay.done():
            raise ProcessEnded("all steps were done before the replay was: choose more --steps")
    finally:
        replay.cancel()
        with suppress(asyncio.CancelledError):
            await replay


@asynccontextmanager
async def _shown(one: World, console: Console) -> AsyncIterator[None]:
    showing = asyncio.create_task(Viewer(one).show(console), name="view")
    try:
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
