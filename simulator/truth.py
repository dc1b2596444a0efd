"""The ground truth at one moment of the event log: the state of the nodes and of one job's ring."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from simulator.events import JobEvent, JobEventKind

NODE_EVENTS = frozenset(
    {JobEventKind.NODE_ADDED, JobEventKind.NOTICE_SHOWN, JobEventKind.NOTICE_WITHDRAWN, JobEventKind.NODE_GONE}
)
"""Events that change a node."""


@dataclass(frozen=True, slots=True)
class LiveNotice:
    """A notice that a node's metadata show now. Instants are Unix seconds."""

    group: str
    shown_at: float


class ReplayTruth:
    """The state after the events applied so far."""

    def __init__(self, min_workers: int, withdrawal_seconds: float) -> None:
        self._min_workers = min_workers
        self._withdrawal_seconds = withdrawal_seconds
        self._notices: dict[str, LiveNotice] = {}
        self._withdrawn: dict[str, float] = {}
        self._gone: set[str] = set()
        self._broken: set[str] = set()
        self._over: set[int] = set()
        self.present: set[str] = set()
        """Existing nodes."""
        self.run = 0
        """The run of the last ring; 0 before the first."""
        self.ring: tuple[str, ...] = ()
        """Hosts of the last ring, in rank order."""
        self.excluded: AbstractSet[str] = frozenset()
        """The exclusions that the discovery script reads."""
        self.blacklisted: set[str] = set()
        """Hosts that this run's launcher has blacklisted."""
        self.stopped: set[int] = set()
        """Runs that received a STOP."""
        self.saved: set[int] = set()
        """Stopped runs whose rank 0 has saved a checkpoint since."""
        self.finished = False
        """Whether a worker has applied the last step."""
        self.certain: JobEvent | None = None
        """The event after which fewer workers than the minimum remained in the ring; None while enough do."""

    def apply(self, event: JobEvent) -> None:
        if event.kind in NODE_EVENTS:
            self._apply_node_event(event)
        else:
            self._apply_job_event(event)
        if self._remaining(event.t, forgiving=False) >= self._min_workers:
            self.certain = None
        elif self.ring:
            self.certain = self.certain or event

    def notice_of(self, host: str) -> LiveNotice | None:
        return self._notices.get(host)

    def is_live(self) -> bool:
        """Whether the run of the last ring has not ended. It may be stopping."""
        return bool(self.ring) and self.run not in self._over

    def is_training(self) -> bool:
        """Whether that run has neither ended nor received a STOP."""
        return self.is_live() and self.run not in self.stopped

    def free(self) -> AbstractSet[str]:
        """Return the existing nodes without a live notice."""
        return self.present - self._notices.keys()

    def justifies_leave(self, host: str, t: float) -> bool:
        """Whether this host has a notice now or had one a moment ago."""
        return self._is_noticed(host, t, forgiving=True)

    def justifies_exclusion(self, host: str, t: float) -> bool:
        """Whether this host has or just had a notice, is gone, or has failed the launcher."""
        return self._is_doomed(host, t, forgiving=True)

    def justifies_stop(self, run: int, t: float) -> bool:
        """Whether too few hosts of this run's last ring remain now or did a moment ago."""
        return run == self.run and self._remaining(t, forgiving=True) < self._min_workers

    def _apply_node_event(self, event: JobEvent) -> None:
        node = event.text("node")
        self._gone.discard(node)
        self._withdrawn.pop(node, None)
        self.present.add(node)
        if event.kind is JobEventKind.NOTICE_SHOWN:
            # A repeated announcement is the same notice with another deadline.
            self._notices.setdefault(node, LiveNotice(event.text("group"), event.t))
        elif self._notices.pop(node, None) is not None and event.kind is JobEventKind.NOTICE_WITHDRAWN:
            self._withdrawn[node] = event.t
        if event.kind is JobEventKind.NODE_GONE:
            self._gone.add(node)
            self.present.discard(node)

    def _apply_job_event(self, event: JobEvent) -> None:
        match event.kind:
            case JobEventKind.RING_FORMED:
                self._apply_ring(event)
            case JobEventKind.RING_BROKEN:
                self._broken.add(event.text("host"))
            case JobEventKind.HOST_BLACKLISTED:
                self._broken.add(event.text("host"))
                self.blacklisted.add(event.text("host"))
            case JobEventKind.EXCLUSIONS_CHANGED:
                self.excluded = frozenset(event.texts("hosts"))
            case JobEventKind.RUN_ENDED | JobEventKind.JOB_FINISHED:
                self._over.add(event.integer("run"))
                self.finished = self.finished or event.kind is JobEventKind.JOB_FINISHED
            case JobEventKind.FLAG_SEEN if event.text("directive") == "STOP":
                self.stopped.add(event.integer("run"))
            case JobEventKind.CHECKPOINT_SAVED if event.integer("run") in self.stopped and event.integer("rank") == 0:
                self.saved.add(event.integer("run"))
            case _:
                pass

    def _apply_ring(self, event: JobEvent) -> None:
        if event.integer("run") != self.run:
            self.certain = None
            self.blacklisted.clear()
        self.run = event.integer("run")
        self.ring = event.texts("hosts")
        self._broken.clear()

    def _remaining(self, t: float, *, forgiving: bool) -> int:
        return sum(not self._is_doomed(host, t, forgiving=forgiving) for host in self.ring)

    def _is_doomed(self, host: str, t: float, *, forgiving: bool) -> bool:
        return host in self._gone or host in self._broken or self._is_noticed(host, t, forgiving=forgiving)

    def _is_noticed(self, host: str, t: float, *, forgiving: bool) -> bool:
        if host in self._notices:
            return True
        withdrawn = self._withdrawn.get(host)
        return forgiving and withdrawn is not None and t - withdrawn <= self._withdrawal_seconds
