"""A clock that tests set, sequences of changes for listeners, and the resulting metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from supervisor.domain.capacity import UNKNOWN_MACHINE
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.processes import Processes
from supervisor.fanout.ranks import RankStates
from supervisor.ingest.agent_registry import AgentRegistry, UnconfirmedNotices
from supervisor.observability.hooks import LiveState
from supervisor.observability.journal import Change, ChangeListener, JobChanged
from supervisor.observability.ledger.book import LedgerBook
from supervisor.store.interface import Snapshot
from tests.supervisor.decide.decide_builders import POLICY, T0, decide, seeing


@dataclass
class Story:
    """One job and the notices on its hosts, told to listeners as it changes."""

    job: SupervisedJob
    registry: CollectorRegistry
    notices: dict[Host, ReclaimNotice] = field(default_factory=dict)
    listeners: Sequence[ChangeListener] = ()
    at: float = 0.0

    def now(self) -> float:
        return T0 + self.at

    def noticed(self, _job: JobName) -> Mapping[Host, ReclaimNotice]:
        return self.notices

    def hear(self, change: Change) -> None:
        for listener in self.listeners:
            listener.on_change(change)

    def becomes(self, job: SupervisedJob, at: float) -> None:
        """At that many seconds after `T0`."""
        before, self.job, self.at = self.job, job, at
        self.hear(JobChanged(before, job, self.now()))

    def decides(self, at: float) -> None:
        self.becomes(decide(self.job, seeing(self.notices), at).job, at)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"job_supervisor_{name}", labels)

    def measured(self, name: str, **labels: str) -> tuple[float, float]:
        count, total = (self.value(f"{name}_{kind}", **labels) for kind in ("count", "sum"))
        return count or 0.0, round(total or 0.0, 3)


def live(snapshot: Callable[[], Snapshot], clock: Clock) -> LiveState:
    processes = Processes(lambda _job: None, clock.now, Bulkhead(Clock()), lambda _job: None)
    return LiveState(
        snapshot=snapshot,
        agents=AgentRegistry(lambda: None, clock.now),
        unconfirmed=UnconfirmedNotices(lambda: None, clock),
        processes=processes,
        ranks=RankStates(processes.workers, lambda _job: None, lambda _job: None),
        launchers=Launchers(lambda _job, _uid, _run: "", clock.now),
        noticed=lambda _job: {},
        ledger=LedgerBook(Clock()),
        record=Fault("record", clock),
        placements=lambda _job: None,
        machine=lambda _node: UNKNOWN_MACHINE,
        node_of=lambda _pod: None,
        policy=POLICY,
        now=clock.now,
    )
