"""Hooks through which metrics observe the pipeline, a no-op implementation, and the store that calls one of them."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from servicekit.clock import Clock
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import Machine, Placement
from supervisor.domain.ids import Host, JobName, NoticeId, Source
from supervisor.domain.job import Decision, SupervisedJob
from supervisor.domain.notice import ReclaimNotice, Subject
from supervisor.domain.order import ProcessDirective, Worker
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.processes import Processes
from supervisor.fanout.ranks import RankStates
from supervisor.ingest.agent_registry import AgentRegistry, UnconfirmedNotices
from supervisor.observability.journal import ChangeListener, NoticedHosts
from supervisor.store.interface import JobChange, NoticeChange, Snapshot, Store, StoreUnavailableError

Placements = Callable[[JobName], Mapping[Host, Placement] | None]
"""The placements of a job's hosts; None for a job whose hosts are nodes."""


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """The location of a node, from its labels."""

    zone: str = "unknown"
    instance_type: str = "unknown"


UNKNOWN_LOCATION = NodeLocation()

NodeLocations = Callable[[Subject], NodeLocation]
"""Finds the location of a notice's subject."""


Gpus = Callable[[JobName], float | None]
"""The GPUs of each worker of a job; None if that is unknown."""


def unknown_gpus(_job: JobName) -> None:
    """The `Gpus` of a stand-alone supervisor."""


def unknown_location(_subject: Subject) -> NodeLocation:
    """The `NodeLocations` of a stand-alone supervisor, which knows no labels."""
    return UNKNOWN_LOCATION


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """Access to the present state of a leader.

    `notified` counts notifications by target and outcome.
    """

    snapshot: Callable[[], Snapshot]
    agents: AgentRegistry
    unconfirmed: UnconfirmedNotices
    processes: Processes
    ranks: RankStates
    launchers: Launchers
    noticed: NoticedHosts
    placements: Placements
    machine: Callable[[Host], Machine]
    notified: Counter[tuple[str, str]] = field(default_factory=Counter)
    policy: Policy
    now: Callable[[], float]


class MetricsHooks(Protocol):
    """Called by the components of a leader. An implementation must neither raise nor block."""

    def attach(self, live: LiveState) -> Sequence[ChangeListener]:
        """Gives access to the leader's state; returns the listeners that the journal has to notify."""

    def on_directives_sent(self, job: JobName, directives: Collection[ProcessDirective]) -> None:
        """Because of a change, each of these directives was sent to at least one connected process of the job."""

    def on_store_write(self, operation: str, seconds: float, *, durable: bool) -> None:
        """A write to the store has ended; see `TimedStore`."""

    def on_report_refused(self, source: Source) -> None:
        """A report of this source was refused, or was older than the stored notice."""

    def on_step(self, worker: Worker, step: int | None) -> None:
        """A training process has reported its step."""


class NoMetrics:
    """Ignores every call."""

    def attach(self, _live: LiveState) -> Sequence[ChangeListener]:
        return ()

    def on_directives_sent(self, _job: JobName, _directives: Collection[ProcessDirective]) -> None:
        pass

    def on_store_write(self, _operation: str, _seconds: float, *, durable: bool) -> None:
        pass

    def on_report_refused(self, _source: Source) -> None:
        pass

    def on_step(self, _worker: Worker, _step: int | None) -> None:
        pass


T = TypeVar("T")

OPERATIONS = ("put_notice", "put_job", "decide")


class WriteTiming(Protocol):
    """A callback for the end of each write."""

    def __call__(self, operation: str, seconds: float, *, durable: bool) -> None:
        """`operation` is one of `OPERATIONS`; `durable` is False if the store was unavailable."""


class TimedStore:
    """Wraps a store. A write that is refused or cancelled is not measured."""

    def __init__(self, store: Store, timing: WriteTiming, clock: Clock) -> None:
        self._store = store
        self._timing = timing
        self._clock = clock
        self.run = store.run
        self.close = store.close
        self.snapshot: Callable[[], Snapshot] = store.snapshot
        self.changed = store.changed
        self.forget_job = store.forget_job
        self.prune = store.prune

    async def put_notice(self, key: NoticeId, change: NoticeChange) -> ReclaimNotice | None:
        return await self._timed("put_notice", self._store.put_notice(key, change))

    async def put_job(self, name: JobName, change: JobChange) -> SupervisedJob | None:
        return await self._timed("put_job", self._store.put_job(name, change))

    async def decide(self, read: SupervisedJob, decision: Decision) -> bool:
        return await self._timed("decide", self._store.decide(read, decision))

    async def _timed(self, operation: str, outcome: Awaitable[T]) -> T:
        started = self._clock.monotonic()
        try:
            value = await outcome
        except StoreUnavailableError:
            self._timing(operation, self._clock.monotonic() - started, durable=False)
            raise
        self._timing(operation, self._clock.monotonic() - started, durable=True)
        return value
