"""Heartbeats on all streams, from one timer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from servicekit.bulkhead import Bulkhead


class Streams(Protocol):
    """Streams of one kind of peer."""

    async def heartbeat(self, seconds: float) -> None:
        """Gives each stream its turn, which comes every `seconds`: it sends a heartbeat if one is due."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Gives every stream a turn every `seconds`."""

    streams: Sequence[Streams]
    seconds: float
    bulkhead: Bulkhead

    async def run(self) -> None:
        """Root task: sends heartbeats."""
        while True:
            await asyncio.sleep(self.seconds)
            for each in self.streams:
                with self.bulkhead.guard("heartbeat", type(each).__name__):
                    await each.heartbeat(self.seconds)
