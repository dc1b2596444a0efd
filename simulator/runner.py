"""Plays a schedule with a job in a world of real processes and judges it, for demo and replay."""

import asyncio
import math
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from rich.console import Console

from simulator.cloud.metadata import AnswerMode
from simulator.cloud.process import ProcessEnded, TooLate
from simulator.cloud.schedule import ReclaimSchedule, training_seconds
from simulator.events import JobEvent
from simulator.harness import ReplayWorld, world
from simulator.job import JobFault
from simulator.services import JobProcess, ServedJobPlan
from simulator.verdict import ReplayVerdict, VerdictBounds
from simulator.view import ReplayViewer

# Enough steps to outlast the schedule, because a job that finishes early proves nothing about the rest.
OUTLIVE_SECONDS = 1.0
# For the job's remaining steps after the scenario, on a slow machine.
PATIENCE_SECONDS = 30.0


class ReplayExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 64
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ReplayScenario:
    """A schedule and the job that runs through it."""

    name: str
    schedule: ReclaimSchedule
    job: ServedJobPlan
    mode: AnswerMode = AnswerMode.PLAIN
    tls: bool = False


@dataclass(frozen=True, slots=True)
class PlayResult:
    """The judge's verdict and the events on which it is based.

    Attributes:
        verdict: The verdict, also if the job did not finish.
        events: The events of the cloud and of the job.
        broken: Why the job did not finish; None if it did.
    """

    verdict: ReplayVerdict
    events: tuple[JobEvent, ...]
    broken: str | None = None


def enough_steps(schedule: ReclaimSchedule, minimum: int, step_seconds: float) -> int:
    """Return a number of steps that a job cannot finish before the schedule ends."""
    return math.ceil((training_seconds(schedule, minimum) + OUTLIVE_SECONDS) / step_seconds)


def fault_arguments(fault: JobFault | None) -> tuple[str, ...]:
    """Return the training script's arguments for a fault."""
    return () if fault is None else ("--fault", fault.value)


async def play(scenario: ReplayScenario, root: Path, console: Console, *, invite: bool = False) -> PlayResult:
    """Play a scenario in an empty directory and judge it. `invite` prints the address of the status page.

    Raises:
        ProcessEnded: A service or an agent ended unexpectedly.
        TooLate: The services or the agents did not start in time.
        ProcessesLeft: A process survived its stop.
    """
    present, broken = scenario.schedule.present, None
    print_line(console, f"Starting a supervisor and {len(present)} nodes with their agents")
    async with world(root, present, scenario.mode, tls=scenario.tls) as one, _shown(one, console):
        if invite:
            page, token = one.supervisor.endpoints.http, one.supervisor.tokens().viewer()
            print_line(console, f"Status page: {page}/ with the token {token}")
        job = one.start_job(scenario.job)
        try:
            await one.until_training(job, _first_workers(scenario))
            await _replayed(one, job, scenario)
        except (ProcessEnded, TooLate) as error:
            broken = str(error)
            # Tells the judge how long nothing has happened, because a suspended job writes no events.
            one.end_scenario()
    # Judged after the world has ended: a process that survives its stop fails the scenario first.
    return PlayResult(one.verdict(job, VerdictBounds()), tuple(one.events(job)), broken)


def _first_workers(scenario: ReplayScenario) -> int:
    # With fewer nodes than its minimum the job waits, and the schedule starts at once.
    present = len(scenario.schedule.present)
    return min(present, scenario.job.max_workers) if present >= scenario.job.min_workers else 0


async def _replayed(one: ReplayWorld, job: JobProcess, scenario: ReplayScenario) -> None:
    """Replay the schedule while the job trains, and wait for the job's end."""
    replay = asyncio.create_task(one.replay(scenario.schedule), name="replay")
    working = scenario.job.steps * scenario.job.step_seconds
    try:
        code = await job.wait(scenario.schedule.seconds + working + PATIENCE_SECONDS)
        if code != 0:
            raise ProcessEnded(f"the job ended with {code}:\n{job.child.tail()}")
        if not replay.done():
            raise ProcessEnded("the job finished before the replay: choose more --steps")
    finally:
        replay.cancel()
        with suppress(asyncio.CancelledError):
            await replay


@asynccontextmanager
async def _shown(one: ReplayWorld, console: Console) -> AsyncIterator[None]:
    showing = asyncio.create_task(ReplayViewer(one).show(console), name="view")
    try:
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


def run(play_all: Callable[[], Awaitable[ReplayExitCode]]) -> ReplayExitCode:
    """Run a command to its end. SIGTERM ends its worlds cleanly, as Ctrl-C does."""
    try:
        return asyncio.run(_interruptible(play_all))
    except KeyboardInterrupt:
        return ReplayExitCode.INTERRUPTED


async def _interruptible(play_all: Callable[[], Awaitable[ReplayExitCode]]) -> ReplayExitCode:
    this = asyncio.current_task()
    if this is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    with suppress(asyncio.CancelledError):
        return await play_all()
    return ReplayExitCode.INTERRUPTED


@dataclass(slots=True)
class WorkDirectory:
    """A directory for one world. Set `keep` to False if nobody needs it afterwards."""

    root: Path
    keep: bool = True


@contextmanager
def work_directory(prefix: str, console: Console) -> Iterator[WorkDirectory]:
    """Create a directory, and afterwards remove it or print where it is."""
    place = WorkDirectory(Path(tempfile.mkdtemp(prefix=prefix)))
    try:
        yield place
    finally:
        if place.keep:
            print_line(console, f"Logs and events are kept in {place.root}")
        else:
            shutil.rmtree(place.root)


def print_line(console: Console, text: str) -> None:
    """Print a line without markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
