"""Notice → flag with many agents and streams, for single notices and for a hundred at once."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.clients.agents import NoticeSent
from benchmarks.clients.streams import DirectiveReceived
from benchmarks.delays import DelayedPeer, fanout_delays, job_stopped_at, noticed_delays, rank_zero_delays
from benchmarks.harness.decisions import LoggedDecision, decisions
from benchmarks.harness.fleet import AgentFleet, FleetSize, fleet
from benchmarks.harness.launchers import LaunchedJob
from benchmarks.harness.training import TrainingRun, training_processes
from benchmarks.harness.viewers import viewers
from benchmarks.machine import Usage
from benchmarks.results import Figure, ResultTarget, Row, ScenarioOutcome, Unit, figures
from benchmarks.summary import summarize

FANOUT_P99_SECONDS = 0.15
_REAL_PROCESSES = 4
_STORM_SECONDS = 2.0
_ROUND_SECONDS = 2.5
"""Longer than the window that collects a group of notices."""

METHOD = """\
The supervisor is real, a process of its own with its own store and tokens. Agents and streams are protocol clients in
other processes on the same cores, each with a connection and a token of its own; four processes of the stopped job are
real ones with `kubeai.elastic`. *Fan-out* is from the commit of a decision to the receipt of its line by each process
that it tells: STOP to rank 0, STOP to the others, CHECKPOINT to all. *To rank 0* is the whole path, from the agent's
first notice that means STOP to rank 0's line. *To the noticed* is from a node's notice to the line that shows it on
that node, which waits up to 50 ms for more. *Real flag* is from the commit that stops everybody to `check_alive()`
False in the last real process. *Alone* is one job that loses a node every 2.5 s; a storm is 100 notices in 2 s, each
job being stopped by its first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutLoad:
    """A case has a size, a number of notices, open status pages, settings, and the command that runs the supervisor."""

    case: str
    size: FleetSize
    notices: int
    storm: bool
    tls: bool
    settings: Mapping[str, str] = field(default_factory=dict)
    viewers: int = 0
    command: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredFanout:
    sent: Sequence[NoticeSent]
    received: Sequence[DirectiveReceived]
    decided: Sequence[LoggedDecision]
    flags_lowered_at: Sequence[float]
    before: Usage
    streams: Usage
    quiet: Usage
    after: Usage


def loads(*, short: bool) -> list[FanoutLoad]:
    if short:
        alone = FleetSize(nodes=20, streams=200, jobs=1, spare=1, framework="torchrun")
        return [_alone(alone, tls=False), _storm(FleetSize(nodes=20, streams=200, jobs=5), 10, tls=True)]
    alone = FleetSize(nodes=200, streams=2000, jobs=1, spare=5, framework="torchrun")
    storms = [FleetSize(nodes=250 if jobs > 200 else 200, streams=2000, jobs=jobs) for jobs in (1, 10, 250)]  # noqa: PLR2004 - a job needs a node
    return [
        load
        for tls in (False, True)
        for load in (_alone(alone, tls=tls), *(_storm(size, 100, tls=tls) for size in storms))
    ]


def _alone(size: FleetSize, *, tls: bool) -> FanoutLoad:
    return FanoutLoad(case=f"alone, 1 job{_suffix(tls)}", size=size, notices=size.spare + 1, storm=False, tls=tls)


def _storm(size: FleetSize, notices: int, *, tls: bool) -> FanoutLoad:
    case = f"storm, {size.jobs} job{'s' if size.jobs > 1 else ''}{_suffix(tls)}"
    return FanoutLoad(case=case, size=size, notices=notices, storm=True, tls=tls)


def _suffix(tls: bool) -> str:  # noqa: FBT001 - a keyword of the callers
    return ", TLS" if tls else ""


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    """Measure all cases."""
    rows = [await measure(root / str(number), load) for number, load in enumerate(loads(short=short))]
    size = loads(short=short)[0].size
    title = f"Notice → flag, {size.nodes} agents, {size.streams:,} streams"
    return ScenarioOutcome(scenario="fanout", title=title, method=METHOD, rows=tuple(rows))


async def measure(root: Path, load: FanoutLoad) -> Row:
    """Measure one case."""
    async with fleet(root, load.size, tls=load.tls, settings=load.settings, command=load.command) as peers:
        return _row(load, peers.peers, await _measure(root, load, peers))


async def _measure(root: Path, load: FanoutLoad, peers: AgentFleet) -> _MeasuredFanout:
    await peers.start_jobs()
    before = peers.server.usage()
    await peers.start_streams()
    after_streams = peers.server.usage()
    job = peers.jobs[0]
    run = TrainingRun(address=peers.server.endpoints.http, token=job.token, job=job.shape.name, ca=peers.server.ca)
    hosts = [job.shape.hosts[0]] * _REAL_PROCESSES
    async with training_processes(root / "identity", run, hosts, first_rank=load.size.streams) as real:
        await peers.received()
        async with viewers(peers.server, load.viewers):
            quiet = peers.server.usage()
            sent = await _notices(load, peers)
        flags_lowered_at = await real.lowered_at()
        return _MeasuredFanout(
            sent=sent,
            received=await peers.received(),
            decided=decisions(peers.server.log),
            flags_lowered_at=flags_lowered_at,
            before=before,
            streams=after_streams,
            quiet=quiet,
            after=peers.server.usage(),
        )


async def _notices(load: FanoutLoad, peers: AgentFleet) -> list[NoticeSent]:
    nodes = _victims(peers.jobs, load.notices)
    if load.storm:
        sent = await peers.notice(nodes, _STORM_SECONDS)
    else:
        sent = []
        for node in nodes:
            sent += await peers.notice([node], 0.0)
            await asyncio.sleep(_ROUND_SECONDS)
    await asyncio.sleep(_ROUND_SECONDS)
    return sent


def _victims(jobs: Sequence[LaunchedJob], count: int) -> list[str]:
    """Return nodes of each job in turn, the last host of a job first."""
    hosts = [list(job.shape.hosts) for job in jobs]
    return [hosts[turn % len(hosts)].pop() for turn in range(count)]


def _row(load: FanoutLoad, peers: Sequence[DelayedPeer], measured: _MeasuredFanout) -> Row:
    aim = ResultTarget(at_most=FANOUT_P99_SECONDS)
    everyone = job_stopped_at(measured.decided, peers[0].job)
    spare = load.size.spare
    return Row(
        case=load.case,
        figures=(
            *figures("fan-out", summarize(fanout_delays(measured.decided, measured.received, peers)), p99=aim),
            *figures("to rank 0", summarize(rank_zero_delays(measured.sent, measured.received, peers, spare))),
            *figures("to the noticed", summarize(noticed_delays(measured.sent, measured.received, peers))),
            Figure(label="real flag", value=max(measured.flags_lowered_at) - everyone, unit=Unit.SECONDS),
            *_costs(load, measured),
        ),
    )


def _costs(load: FanoutLoad, measured: _MeasuredFanout) -> Iterator[Figure]:
    spent = measured.after.cpu_seconds - measured.quiet.cpu_seconds
    grown = measured.streams.resident_bytes - measured.before.resident_bytes
    yield Figure(label="server CPU", value=spent, unit=Unit.SECONDS)
    yield Figure(label="server RSS", value=measured.after.resident_bytes, unit=Unit.BYTES)
    yield Figure(label="a stream", value=grown / load.size.streams, unit=Unit.BYTES)
