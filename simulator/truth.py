"""The ground truth at one moment of the event log: what is so of the nodes and of one job's ring."""

from simulator.events import Event, Kind

TOLD = frozenset({Kind.NODE_ADDED, Kind.NOTICE_SHOWN, Kind.NOTICE_WITHDRAWN, Kind.NODE_GONE})
"""Events that change what is so of the nodes."""


class Truth:
    """Show it the events in order, ask it in between."""

    def __init__(self, min_workers: int, withdrawal_seconds: float) -> None:
        self._min_workers = min_workers
        self._withdrawal_seconds = withdrawal_seconds
        self._group_of: dict[str, str] = {}
        self._withdrawn: dict[str, float] = {}
        self._gone: set[str] = set()
        self._ring: tuple[str, ...] = ()
        self._broken: set[str] = set()
        self._stopped: set[int] = set()
        self.run = 0
        """The run whose ring was formed last; 0 before the first."""
        self.certain: Event | None = None
        """What made it certain that fewer workers than the minimum remain in that ring; None while enough do."""

    def see(self, event: Event) -> None:
        """Take in the next event."""
        if event.kind in TOLD:
            self._see_node(event)
        elif event.kind is Kind.RING_FORMED:
            self._see_ring(event)
        elif event.kind in (Kind.RING_BROKEN, Kind.HOST_BLACKLISTED):
            self._broken.add(event.text("host"))
        elif event.kind is Kind.JOB_FINISHED or _is_stop(event):
            self._stopped.add(event.integer("run"))
        else:
            return
        if self._remaining(event.t, forgiving=False) >= self._min_workers:
            self.certain = None
        elif self._ring:
            self.certain = self.certain or event

    def group_of(self, host: str) -> str | None:
        """The group of the live notice on a host; None without one."""
        return self._group_of.get(host)

    def is_in_ring(self, host: str) -> bool:
        """Whether a host belongs to the ring that was formed last."""
        return host in self._ring

    def is_training(self) -> bool:
        """A ring was formed in a run that has neither seen a STOP nor finished."""
        return bool(self._ring) and self.run not in self._stopped

    def justifies_leave(self, host: str, t: float) -> bool:
        """Whether this host has a notice at this moment, or had one a moment ago."""
        return self._is_noticed(host, t, forgiving=True)

    def justifies_stop(self, run: int, t: float) -> bool:
        """Whether too few hosts remain of this run's last ring at this moment, or did a moment ago."""
        return run == self.run and self._remaining(t, forgiving=True) < self._min_workers

    def _see_node(self, event: Event) -> None:
        node = event.text("node")
        self._gone.discard(node)
        self._withdrawn.pop(node, None)
        if event.kind is Kind.NOTICE_SHOWN:
            # Shown again while it lives, it is the same notice with another deadline.
            self._group_of.setdefault(node, event.text("group"))
        elif self._group_of.pop(node, None) is not None and event.kind is Kind.NOTICE_WITHDRAWN:
            self._withdrawn[node] = event.t
        if event.kind is Kind.NODE_GONE:
            self._gone.add(node)

    def _see_ring(self, event: Event) -> None:
        if event.integer("run") != self.run:
            self.certain = None
        self.run = event.integer("run")
        self._ring = event.texts("hosts")
        self._broken.clear()

    def _remaining(self, t: float, *, forgiving: bool) -> int:
        return sum(not self._is_doomed(host, t, forgiving=forgiving) for host in self._ring)

    def _is_doomed(self, host: str, t: float, *, forgiving: bool) -> bool:
        return host in self._gone or host in self._broken or self._is_noticed(host, t, forgiving=forgiving)

    def _is_noticed(self, host: str, t: float, *, forgiving: bool) -> bool:
        if host in self._group_of:
            return True
        withdrawn = self._withdrawn.get(host)
        return forgiving and withdrawn is not None and t - withdrawn <= self._withdrawal_seconds


def _is_stop(event: Event) -> bool:
    return event.kind is Kind.FLAG_SEEN and event.text("directive") == "STOP"
