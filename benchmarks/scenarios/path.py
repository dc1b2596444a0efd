"""The whole path with real processes: from a notice in a node's metadata to the flag and to the launcher's list."""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from benchmarks.clients.baseline import POLL_SECONDS, BaselineSignalled, BaselineTraining
from benchmarks.harness.client import ClientProcess
from benchmarks.harness.launchers import JobShape, LoadLaunchers
from benchmarks.harness.training import TrainingRun, training_processes
from benchmarks.results import ResultTarget, Row, ScenarioOutcome, figures
from benchmarks.summary import summarize
from simulator.cloud.trace import Node
from simulator.events import JobEvent, JobEventKind
from simulator.harness import ReplayWorld, world
from simulator.services import ServedJobPlan
from supervisor.decide.policy import Policy

_HOSTS = [Node(f"node-{number}") for number in range(8)]
_LEAD_SECONDS = 3600.0
_ABOVE_SECONDS = 0.05
_POLL_SECONDS = 0.001
_PATIENCE_SECONDS = 30.0
_SEED = 4
_ALTERNATIVE = Node("alternative")

METHOD = """\
Supervisor, agents and training processes are real, started through their commands, and the metadata server is a real
HTTP server; eight processes with `kubeai.elastic` on eight nodes, whose agents poll once a second. The notice comes
at a random moment of that second and means STOP. *Whole path* is from the notice in the metadata to the last of them;
*poll wait* is from the notice in the metadata to the agent's next question; *to rank 0* and *to the last* are what
follows until `check_alive()` is False, the last being told only when rank 0 has left, as it does at once here. *To
the list* is from the first notice of a group of three that the supervisor has stored to the one change of the file
that Horovod's discovery reads, with a real `kubeai-run`. The alternative is what a user would do alone: a loop that
asks the same metadata every 2 s and sends SIGTERM to a real process; it reaches the processes of its own node only."""


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    """Measure the flag, the alternative, and the host list."""
    rounds, window = 1 if short else 8, Policy().window_seconds
    stops, terminated = await _flags(root / "flags", rounds)
    changed = [await _host_list(root / f"list-{number}") for number in range(1 if short else 3)]
    rows = (
        Row(
            case="supervisor: flags of 8 processes",
            figures=(
                *figures("whole path", summarize(wait + last for wait, _, last in stops)),
                *figures("poll wait", summarize(wait for wait, _, _ in stops)),
                *figures("to rank 0", summarize(zero for _, zero, _ in stops)),
                *figures(
                    "to the last", summarize(last for _, _, last in stops), p99=ResultTarget(at_most=_ABOVE_SECONDS)
                ),
            ),
        ),
        Row(
            case=f"a loop of {POLL_SECONDS:g} s and SIGTERM: 1 process",
            figures=tuple(figures("whole path", summarize(terminated))),
        ),
        Row(
            case=f"supervisor: group of three, window {window:g} s",
            figures=tuple(
                figures("to the list", summarize(changed), p99=ResultTarget(at_most=window + _ABOVE_SECONDS)),
            ),
        ),
    )
    return ScenarioOutcome(scenario="path", title="The whole path, everything real", method=METHOD, rows=rows)


async def _flags(root: Path, rounds: int) -> tuple[list[tuple[float, float, float]], list[float]]:
    """Return poll wait, time to rank 0 and time to the last process per round, and the alternative's times."""
    moments = random.Random(_SEED)  # noqa: S311 - repeatable, not secret
    async with world(root, _HOSTS) as w, _launchers(w) as launchers, _alternative(w) as signalled:
        stops, terminated = [], []
        for number in range(rounds):
            stops.append(await _stop(w, launchers, root / "rounds", number, moments.random()))
            terminated.append(await _signal(w, signalled))
        return stops, terminated


async def _stop(
    w: ReplayWorld, launchers: LoadLaunchers, directory: Path, number: int, moment: float
) -> tuple[float, float, float]:
    [job] = launchers.launch([JobShape(name=f"round-{number}", hosts=_HOSTS, min_workers=len(_HOSTS))])
    await launchers.until_running([job], _PATIENCE_SECONDS)
    run = TrainingRun(address=w.supervisor.endpoints.http, token=job.token, job=job.shape.name)
    async with training_processes(directory / str(number), run, _HOSTS) as real:
        await asyncio.sleep(moment)
        victim = _HOSTS[-1]
        asked, noticed = w.metadata.poll_count(victim), time.monotonic()
        w.provider.notice(victim, time.time() + _LEAD_SECONDS)
        while w.metadata.poll_count(victim) == asked:  # noqa: ASYNC110 - there is no event for a poll
            await asyncio.sleep(_POLL_SECONDS)
        told = time.monotonic()
        lowered_at = await real.lowered_at()
        await launchers.report_end(job)
    w.provider.withdraw(victim)
    await w.until(lambda status: all(each.state != "active" for each in status.notices), "the notice to be withdrawn")
    return told - noticed, lowered_at[0] - told, max(lowered_at) - told


@asynccontextmanager
async def _launchers(w: ReplayWorld) -> AsyncIterator[LoadLaunchers]:
    async with LoadLaunchers(w.supervisor.endpoints.http, w.supervisor.tokens(), acknowledges=False) as launchers:
        yield launchers


_Signals = ClientProcess[BaselineTraining | BaselineSignalled]


@asynccontextmanager
async def _alternative(w: ReplayWorld) -> AsyncIterator[_Signals]:
    """Start a training process and the loop that polls a node of its own for it."""
    w.metadata.add(_ALTERNATIVE)
    url = f"{w.metadata.url_of(_ALTERNATIVE)}/latest/meta-data/instance/spot/termination-time"
    training = await _Signals.start("baseline", BaselineTraining | BaselineSignalled, ["train"])  # type: ignore[arg-type]
    loop = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.clients.baseline", "poll", url, str(training.pid))
    )
    try:
        await training.receive()
        yield training
    finally:
        loop.kill()
        await loop.wait()
        await training.kill()


async def _signal(w: ReplayWorld, training: _Signals) -> float:
    await asyncio.sleep(POLL_SECONDS)  # Let the loop see that there is no notice.
    began = time.monotonic()
    w.metadata.notice(_ALTERNATIVE, time.time() + _LEAD_SECONDS)
    answer = await training.receive()
    w.metadata.withdraw(_ALTERNATIVE)
    if not isinstance(answer, BaselineSignalled):
        raise AssertionError("expected a signal")  # noqa: TRY004 - not a wrong argument type
    return answer.at - began


async def _host_list(root: Path) -> float:
    """Return the seconds from the first stored notice of a group to the last change of the list, mostly the only one.

    A machine that is busy enough makes agents report the notices of one group further apart than the window is long.
    """
    async with world(root, _HOSTS) as w:
        job = w.start_job(ServedJobPlan(min_workers=4, max_workers=8, steps=100_000))
        await w.until_training(job, workers=len(_HOSTS))
        for node in _HOSTS[:3]:
            w.provider.notice(node, time.time() + _LEAD_SECONDS, "group")
        await w.until_event(job, lambda events: bool(_changes(events)), "the list to change")
        await asyncio.sleep(Policy().window_seconds)
        *_, changed = _changes(job.events())
        stored = _first_stored(root / "logs" / "supervisor.log")
    return changed.t - stored


def _changes(events: Sequence[JobEvent]) -> list[JobEvent]:
    return [event for event in events if event.kind is JobEventKind.EXCLUSIONS_CHANGED]


def _first_stored(log: Path) -> float:
    """Return Unix seconds, from the supervisor's log."""
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line) if line.startswith("{") else {}  # Text of Python itself may be among the lines.
        if entry.get("event") == "notice.received":
            return datetime.fromisoformat(entry["timestamp"]).timestamp()
    raise AssertionError("no notice was stored")
