"""Observes the exclusions file that the discovery script reads, so that changes are dated by the file itself."""

import asyncio
from pathlib import Path
from typing import NoReturn

from simulator.events import EventLog, JobEventKind

# Far below the measured window of 1.25 s, and reading a small file is cheap.
POLL_SECONDS = 0.02


async def observe(exclusions: Path, log: EventLog) -> NoReturn:
    """Write an event for every change of the excluded hosts until cancelled. A missing file excludes no host."""
    known: frozenset[str] = frozenset()
    while True:
        hosts = _read(exclusions)
        if hosts != known:
            log.write(JobEventKind.EXCLUSIONS_CHANGED, hosts=sorted(hosts))
            known = hosts
        await asyncio.sleep(POLL_SECONDS)


def _read(path: Path) -> frozenset[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return frozenset()
    return frozenset(line.strip() for line in lines if line.strip())
