"""Defines the hooks through which metrics observe the pipeline, and a store that calls one of them."""

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from servicekit.clock import Clock
from servicekit.faults import Fault
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine, Placement
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import Subject, SubjectKind
from supervisor.domain.order import ProcessDirective, Worker
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.processes import Processes
from supervisor.fanout.ranks import RankStates
from supervisor.ingest.agent_registry import AgentRegistry, UnconfirmedNotices
from supervisor.observability.journal import ChangeListener, NoticedHosts
from supervisor.observability.ledger.book import LedgerBook
from supervisor.store.interface import Snapshot, Store, StoreUnavailableError

Placements = Callable[[JobName], Mapping[Host, Placement] | None]
"""The placements of a job's hosts; None for a job whose hosts are nodes."""


Gpus = Callable[[JobName], float | None]
"""The GPUs of each worker of a job; None if that is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """Access to the present state of a leader.

    `node_of` returns the node of a pod; None if it is unknown, "" if another pod has its uid. `notified` counts
    notifications by target and outcome, and `spans` returns the number of spans by outcome; it is None if there are no
    traces. `record` knows whether the database of the record can be used.
    """

    snapshot: Callable[[], Snapshot]
    agents: AgentRegistry
    unconfirmed: UnconfirmedNotices
    processes: Processes
    ranks: RankStates
    launchers: Launchers
    noticed: NoticedHosts
    ledger: LedgerBook
    record: Fault
    placements: Placements
    machine: Callable[[Host], Machine]
    node_of: Callable[[Subject], Host | None]
    notified: Counter[tuple[str, str]] = field(default_factory=Counter)
    policy: Policy
    now: Callable[[], float]
    spans: Callable[[], Mapping[str, int]] | None = None

    def machine_of(self, subject: Subject) -> Machine:
        """The machine that a notice is about, or on which its pod is."""
        node = self.node_of(subject) if subject.kind is SubjectKind.POD else Host(subject.name)
        return self.machine(node) if node else UNKNOWN_MACHINE

    def nodes(self, job: SupervisedJob) -> Mapping[Host, Host]:
        """The node of each worker of a job. It is empty, and so has no agent, for a pod that is not in the cache."""
        placements = self.placements(job.name)
        if placements is None:
            return {host: host for host in job.workers}
        return {host: placements[host].node if host in placements else Host("") for host in job.workers}


OPERATIONS = ("put_notice", "put_job", "decide")


class MetricsHooks:
    """Called by the components of a leader; these methods ignore the call. No subclass may raise or block."""

    def attach(self, _live: LiveState) -> Sequence[ChangeListener]:
        """Gives access to the leader's state; returns the listeners that the journal has to notify."""
        return ()

    def on_directives_sent(self, job: JobName, directives: Collection[ProcessDirective]) -> None:
        """Called after the directives of a change were sent; each went to at least one connected process of the job."""

    def on_store_write(self, operation: str, seconds: float, *, durable: bool) -> None:
        """Called when a write has ended.

        `operation` is one of `OPERATIONS`; `durable` is False if the store was unavailable.
        """

    def on_report_refused(self, source: Source) -> None:
        """Called when a report of this source was refused, or was older than the stored notice."""

    def on_step(self, worker: Worker, step: int | None) -> None:
        """Called when a training process has reported its step."""


P = ParamSpec("P")
T = TypeVar("T")


class TimedStore:
    """Wraps a store, and reports its writes. A write that is refused or cancelled is not reported."""

    def __init__(self, store: Store, hooks: MetricsHooks, clock: Clock) -> None:
        def timed(operation: str, write: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            async def measured(*arguments: P.args, **named: P.kwargs) -> T:
                started = clock.monotonic()
                try:
                    value = await write(*arguments, **named)
                except StoreUnavailableError:
                    hooks.on_store_write(operation, clock.monotonic() - started, durable=False)
                    raise
                hooks.on_store_write(operation, clock.monotonic() - started, durable=True)
                return value

            return measured

        self.run = store.run
        self.close = store.close
        self.snapshot: Callable[[], Snapshot] = store.snapshot
        self.changed = store.changed
        self.forget_job = store.forget_job
        self.prune = store.prune
        self.put_notice = timed("put_notice", store.put_notice)
        self.put_job = timed("put_job", store.put_job)
        self.decide = timed("decide", store.decide)
