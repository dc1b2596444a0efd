"""What is told of the line's own work to whoever measures it; and nobody who does."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from supervisor.decide.policy import Policy
from supervisor.domain.directive import Directive, Worker
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.notice import Subject
from supervisor.domain.placement import Placement
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.processes import Processes
from supervisor.ingest.agent_registry import AgentRegistry
from supervisor.ingest.unconfirmed import UnconfirmedNotices
from supervisor.observability.journal import Listener
from supervisor.observability.transitions import NoticedHosts
from supervisor.store.interface import Snapshot

Placements = Callable[[JobName], Mapping[Host, Placement] | None]
"""Where a job's hosts are; None for one whose hosts are nodes."""


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """Where a subject is, as its node's labels have it."""

    zone: str = "unknown"
    instance_type: str = "unknown"


UNKNOWN_LOCATION = NodeLocation()

NodeLocations = Callable[[Subject], NodeLocation]
"""Where a subject is."""


def unknown_location(_subject: Subject) -> NodeLocation:
    """Where nobody knows any labels."""
    return UNKNOWN_LOCATION


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """Where to look for what is so now; `failed` counts what each listener has failed to take."""

    snapshot: Callable[[], Snapshot]
    agents: AgentRegistry
    unconfirmed: UnconfirmedNotices
    processes: Processes
    launchers: Launchers
    noticed: NoticedHosts
    placements: Placements
    failed: Callable[[], Mapping[str, int]]
    policy: Policy
    now: Callable[[], float]


class MetricsHooks(Protocol):
    """Told by a leader's parts; none of these raises or waits."""

    def attach(self, live: LiveState) -> Sequence[Listener]:
        """Looks there from now on; returns those who are to hear of every change."""

    def on_directives_sent(self, job: JobName, directives: Collection[Directive]) -> None:
        """Those processes of a job that were connected have just been sent these, each of them to at least one."""

    def on_store_write(self, operation: str, seconds: float, *, durable: bool) -> None:
        """A change was asked for; see `supervisor.observability.timed_store`."""

    def on_report_refused(self, source: Source) -> None:
        """A report on a notice was refused, or was older than what is known."""

    def on_step(self, worker: Worker, step: int | None) -> None:
        """A training process has said which step it is at."""


class NoMetrics:
    """Nobody measures."""

    def attach(self, _sight: LiveState) -> Sequence[Listener]:
        """Nobody hears."""
        return ()

    def on_directives_sent(self, _job: JobName, _directives: Collection[Directive]) -> None:
        """See `MetricsHooks`."""

    def on_store_write(self, _operation: str, _seconds: float, *, durable: bool) -> None:
        """See `MetricsHooks`."""

    def on_report_refused(self, _source: Source) -> None:
        """See `MetricsHooks`."""

    def on_step(self, _worker: Worker, _step: int | None) -> None:
        """See `MetricsHooks`."""
