"""Sends each connected launcher the present order of its job."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.domain.ids import JobId, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.order import Order, OrderKind
from supervisor.fanout.lines import LineResponse, line

UNKNOWN = "the job is not known any more"
"""The goodbye to the launcher of a job that was deleted, or whose name another one has: it registers again."""


@dataclass(slots=True)
class _LauncherConnection:
    stream: LineResponse
    job: SupervisedJob
    sent: tuple[Order, str] | None = None


class Launchers:
    """Holds the streams to launchers, one per job.

    Args:
        token: Makes the job token of (job, uid, run) that an order contains.
        now: Unix seconds.
        lacks: Returns what a waiting job waits for, in sentences; empty if it does not wait for hosts.
    """

    def __init__(
        self,
        token: Callable[[str, str, int], str],
        now: Callable[[], float],
        lacks: Callable[[JobName], str] = lambda _: "",
    ) -> None:
        self._token = token
        self._lacks = lacks
        self._now = now
        self._started = now()
        self._connections: dict[JobId, _LauncherConnection] = {}
        self._seen: dict[JobId, float] = {}

    def attach(self, job: SupervisedJob, order: Order, stream: LineResponse) -> None:
        """Adds a launcher and sends it the present order; a second stream of one launcher replaces the first."""
        replaced = self._connections.get(job.id)
        if replaced is not None:
            replaced.stream.finish("replaced by a newer stream")
        self._connections[job.id] = _LauncherConnection(stream, job)
        self.publish(job, order)

    def detach(self, job: JobId, stream: LineResponse) -> None:
        """Removes a stream that has ended."""
        connection = self._connections.get(job)
        if connection is not None and connection.stream is stream:
            del self._connections[job]
            self._seen[job] = self._now()

    @property
    def count(self) -> int:
        """The number of streams."""
        return len(self._connections)

    def last_seen(self, job: JobId) -> float:
        """When the job's launcher was last connected, or the start of this process if that is later."""
        return self._now() if job in self._connections else self._seen.get(job, self._started)

    def forget_others(self, jobs: Collection[JobId]) -> None:
        """Forgets the launchers of all other jobs."""
        self._seen = {job: at for job, at in self._seen.items() if job in jobs}

    def dismiss_others(self, jobs: Mapping[JobName, SupervisedJob]) -> None:
        """Ends the streams of all other jobs, which were deleted. Their launchers reconnect and register again."""
        for known, connection in self._connections.items():
            present = jobs.get(known.name)
            if present is None or present.uid != known.uid:
                connection.stream.finish(UNKNOWN)

    def publish(self, job: SupervisedJob, order: Order) -> None:
        """Sends an order, unless it was the last one sent or is for an earlier job of the same name."""
        connection = self._connections.get(job.id)
        if connection is None:
            return
        connection.job = job
        present = (order, self._lacks(job.name) if order.kind is OrderKind.WAIT else "")
        if connection.sent != present:
            connection.sent = present
            connection.stream.push(line(message(*present, self._token(job.name, job.uid, order.run))))

    async def heartbeat(self, seconds: float) -> None:
        """Sends the heartbeats that are due, and the order again if the job now waits for something else."""
        for connection in list(self._connections.values()):
            connection.stream.heartbeat(seconds)
            if connection.sent is not None and connection.sent[0].kind is OrderKind.WAIT:
                self.publish(connection.job, connection.sent[0])
                await asyncio.sleep(0)  # Between jobs with thousands of hosts, urgent work has its turn.

    def finish(self, reason: str) -> None:
        """Ends every stream with a goodbye."""
        for connection in self._connections.values():
            connection.stream.finish(reason)
        self._connections.clear()


def message(order: Order, waits_for: str, token: str) -> Mapping[str, Any]:
    """Encodes an order for the wire."""
    return {
        "type": "order",
        "generation": order.generation,
        "phase": order.phase,
        "reason": order.reason,
        "waits_for": waits_for,
        "order": order.kind,
        "run": order.run,
        "stopping": order.stopping,
        "workers": order.workers,
        "hosts": order.hosts,
        "exclusions": order.exclusions,
        "token": token,
    }
