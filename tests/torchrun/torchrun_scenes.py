"""Records the cost of each event of a test for its job."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.torchrun.torchrun_job import TorchrunJob
from tests.torchrun.torchrun_records import Cost

Row = Callable[[str, str, Cost], None]
"""Notes what an event cost under a backend: `row("worker killed", "c10d", cost)`."""


@dataclass(frozen=True, slots=True)
class Scenes:
    """Waits for the ends of events, and notes what they have cost under a backend."""

    row: Row
    backend: str

    async def settled(self, job: TorchrunJob, event: str, hosts: int) -> Cost:
        """Wait until so many hosts train after an event; returns what it cost."""
        cost = await job.until_trains(hosts)
        assert cost is not None
        self.row(event, f"{self.backend}, {job.training.wrapping}", cost)
        return cost

    async def costs_nothing(self, job: TorchrunJob, event: str, hosts: int) -> None:
        """Wait in the same way, and check that it used up no restart and that no step was trained twice."""
        cost = await self.settled(job, event, hosts)
        assert (cost.burned, cost.redone) == (0, 0)
