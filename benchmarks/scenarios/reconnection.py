"""Kills and restarts a supervisor with many open streams and measures how soon all are back."""

import asyncio
import time
from pathlib import Path

from benchmarks.harness.fleet import FleetSize, fleet
from benchmarks.results import Figure, Row, ScenarioOutcome, Unit, figures
from benchmarks.summary import summarize

_READY_SECONDS = 60.0

METHOD = """\
The supervisor is killed with SIGKILL and started again on the same ports and data. The streams are protocol clients
in another process, which reconnect after the SDK's pauses: full jitter up to 1 s, and after 4 s up to a quarter of the
absence. *Back* is from the moment the supervisor serves again to the first line of each stream. *Server CPU* is the CPU
time from its start until the last stream is back."""


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    """Measure with and without TLS, after a short and a long absence."""
    streams = 200 if short else 2000
    absences = (0.0,) if short else (0.0, 10.0)
    cases = [(tls, absence) for tls in (False, True) for absence in absences]
    rows = [await _measure(root / str(turn), streams, absence, tls=tls) for turn, (tls, absence) in enumerate(cases)]
    return ScenarioOutcome(
        scenario="storm", title=f"Reconnection of {streams:,} streams", method=METHOD, rows=tuple(rows)
    )


async def _measure(root: Path, streams: int, absence: float, *, tls: bool) -> Row:
    async with fleet(root, FleetSize(nodes=10, streams=streams, jobs=1), tls=tls) as peers:
        await peers.start_jobs()
        await peers.start_streams()
        killed = time.monotonic()
        await peers.server.kill()
        await asyncio.sleep(absence)
        await peers.server.start()
        serving = time.monotonic()
        back = await peers.until_ready(_READY_SECONDS)
        spent = peers.server.usage().cpu_seconds
    case = f"away {absence:g} s longer than a start takes" if absence else "away as long as a start takes"
    return Row(
        case=case + (", TLS" if tls else ""),
        figures=(
            Figure(label="away", value=serving - killed, unit=Unit.SECONDS),
            *figures("back", summarize(max(0.0, at - serving) for at in back)),
            Figure(label="server CPU", value=spent, unit=Unit.SECONDS),
        ),
    )
