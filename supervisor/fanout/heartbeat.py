"""Heartbeats on the streams to launchers, elastic agents and training processes."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Streams(Protocol):
    """Streams of one kind of peer."""

    async def heartbeat(self) -> None:
        """Sends a heartbeat on each."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sends a heartbeat on every stream every `seconds`."""

    streams: Sequence[Streams]
    seconds: float

    async def run(self) -> None:
        """Root task: sends heartbeats."""
        while True:
            await asyncio.sleep(self.seconds)
            for each in self.streams:
                await each.heartbeat()
