"""As many agents and streams as the machine can run with their clients: idle, and during a wave of notices."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.clients.agents import NoticeSent
from benchmarks.clients.streams import DirectiveReceived
from benchmarks.delays import MissingLineError, fanout_delays, noticed_delays
from benchmarks.harness.decisions import decisions
from benchmarks.harness.fleet import AgentFleet, FleetSize, fleet
from benchmarks.results import Figure, ResultTarget, Row, ScenarioOutcome, Unit, figures
from benchmarks.scenarios import brokers, polling
from benchmarks.summary import summarize

_IDLE_BYTES = 640 * 1024 * 1024
_IDLE_CORES = 0.03
_WHY_CORES = """gRPC's threads look for work again and again after each event, which is about 1 % of a core whatever \
the load, and each of 83 pings a second costs them some 180 µs. Heartbeats are the rest."""
_WHY_BYTES = """an agent's connection takes about 90 KiB. gRPC and its TLS allocate some 110 KiB for each, of which 74 \
are buffers of fixed sizes that are written in part. A process's stream takes 37 KiB, and one that processes share 48 \
KiB, with the state of eight processes."""
_WAVE_P99_SECONDS = 1.0
_WAVE_CORES = 2.0
_WAVE_BYTES = 1024 * 1024 * 1024
_SETTLE_SECONDS = 6.0
"""Longer than the interval of heartbeats."""
_LOOK_SECONDS = 0.5
_TOLD_SECONDS = 60.0
"""On starved cores the last process is told late; that is a delay, and no loss."""

METHOD = """\
One real supervisor with TLS; all agents, launchers and streams are protocol clients in processes of their own on the
same cores, each with a connection and a token of its own, so that a busy client delays what it measures. In the wave
half of all nodes are noticed, one after the other; each job excludes what it loses until it must be stopped. *Durable*
is from an agent's notice to its acknowledgement, the others are as in the first table. Nothing may be lost: a process
that is not told fails the run. An agent whose stream is lost, as on starved cores, opens it again and repeats. With
*shared streams*, eight processes of each node share one, as those of a pod do."""


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    """Measure idle and in a wave, with a fleet that has a stream for each process, and with one that shares them."""
    alone = (
        FleetSize(nodes=100, streams=200, jobs=5, spare=8)
        if short
        else FleetSize(nodes=5000, streams=10_000, jobs=100, spare=20)
    )
    shared = replace(alone, streams=8 * alone.nodes, shared=True)
    rows = [row for size in (alone, shared) for row in await _measure(root / f"{size.streams}", size, short=short)]
    notices, over = alone.nodes // 2, _wave_seconds(short=short)
    rows += [*await brokers.rows(root / "brokers", alone, notices, over), await polling.row(notices, over)]
    method = f"{METHOD}\n\n{brokers.METHOD}\n\n{polling.METHOD}"
    return ScenarioOutcome(scenario="scale", title=f"{alone.nodes:,} agents, TLS", method=method, rows=tuple(rows))


def _wave_seconds(*, short: bool) -> float:
    return 3.0 if short else 60.0


async def _measure(root: Path, size: FleetSize, *, short: bool) -> Sequence[Row]:
    over, watched = _wave_seconds(short=short), 3.0 if short else 30.0
    async with fleet(root, size, tls=True) as peers:
        await peers.start_jobs()
        await peers.start_streams()
        await asyncio.sleep(_SETTLE_SECONDS)
        return await _measure_idle(peers, watched), await _measure_wave(peers, over)


def _case(size: FleetSize, what: str) -> str:
    return f"{size.streams:,} {'processes, shared streams' if size.shared else 'streams'}: {what}"


async def _measure_idle(peers: AgentFleet, seconds: float) -> Row:
    before, began = peers.server.usage(), time.monotonic()
    await asyncio.sleep(seconds)
    after, passed = peers.server.usage(), time.monotonic() - began
    cores = (after.cpu_seconds - before.cpu_seconds) / passed
    return Row(
        case=_case(peers.size, "idle"),
        figures=(
            Figure(
                label="server CPU",
                value=cores,
                unit=Unit.CORES,
                target=ResultTarget(at_most=_IDLE_CORES, why=_WHY_CORES),
            ),
            Figure(
                label="server RSS",
                value=after.resident_bytes,
                unit=Unit.BYTES,
                target=ResultTarget(at_most=_IDLE_BYTES, why=_WHY_BYTES),
            ),
        ),
    )


async def _measure_wave(peers: AgentFleet, over: float) -> Row:
    nodes = [job.shape.hosts[turn] for turn in range(_half(peers.size)) for job in peers.jobs]
    await peers.received()
    before, began = peers.server.usage(), time.monotonic()
    sent = await peers.notice(nodes, over)
    passed = time.monotonic() - began
    await asyncio.sleep(_SETTLE_SECONDS)
    after = peers.server.usage()
    noticed, told = await _all_told(peers, sent)
    aim = ResultTarget(at_most=_WAVE_P99_SECONDS)
    return Row(
        case=_case(peers.size, f"{len(nodes):,} notices in {over:g} s"),
        figures=(
            Figure(
                label="server CPU",
                value=(after.cpu_seconds - before.cpu_seconds) / passed,
                unit=Unit.CORES,
                target=ResultTarget(at_most=_WAVE_CORES),
            ),
            Figure(
                label="server RSS",
                value=after.resident_bytes,
                unit=Unit.BYTES,
                target=ResultTarget(at_most=_WAVE_BYTES),
            ),
            Figure(label="agents that reconnected", value=peers.reconnected, unit=Unit.COUNT),
            *figures("durable", summarize(each.acknowledged_at - each.at for each in sent), p99=aim),
            *figures("to the noticed", summarize(noticed), p99=aim),
            *figures("fan-out", summarize(told), p99=aim),
        ),
    )


async def _all_told(peers: AgentFleet, sent: Sequence[NoticeSent]) -> tuple[list[float], list[float]]:
    """Return the delays to the noticed processes, and those of the fan-out, once no process is missing.

    Raises:
        MissingLineError: A process was not told in time.
    """
    deadline, received = time.monotonic() + _TOLD_SECONDS, list[DirectiveReceived]()
    while True:
        received += await peers.received()
        decided = decisions(peers.server.log)
        try:
            return noticed_delays(sent, received, peers.peers), fanout_delays(decided, received, peers.peers)
        except MissingLineError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_LOOK_SECONDS)


def _half(size: FleetSize) -> int:
    return size.nodes // size.jobs // 2
