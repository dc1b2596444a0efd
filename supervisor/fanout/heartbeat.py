"""Heartbeats on the streams to launchers and training processes."""

import asyncio
from dataclasses import dataclass

from supervisor.fanout.launchers import Launchers
from supervisor.fanout.processes import Processes


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sends a heartbeat on every stream every `seconds`."""

    processes: Processes
    launchers: Launchers
    seconds: float

    async def run(self) -> None:
        """Root task: sends heartbeats."""
        while True:
            await asyncio.sleep(self.seconds)
            await self.processes.heartbeat()
            await self.launchers.heartbeat()
