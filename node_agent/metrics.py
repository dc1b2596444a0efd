"""Defines and records the metrics of the agent."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node_agent.notices import NoticeId, NoticeReport, PollResult, SourceName
from node_agent.outbox import NoticeOutbox
from node_agent.stream import SupervisorUplink
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.metrics import guarded, registry

# Present from the start: an increase from nothing to 1 would not be seen.
_GUARDED = ("callback", "discovery", "metrics", "pods", "report", "source", "uplink", "watch")
_POLLING = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_ACKNOWLEDGING = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class AgentMetrics:
    """Records metrics in hooks that pollers and the outbox call. `observe` adds metrics that each scrape reads."""

    def __init__(self, version: str, clock: Clock, bulkhead: Bulkhead) -> None:
        self.bulkhead = bulkhead
        self._clock = clock
        self._reported_at = dict[NoticeId, float]()
        self.registry = registry()
        Info("node_agent_build", "Has the version of the agent as its label, and is 1.", registry=self.registry).info(
            {"version": version}
        )
        self._polls = Counter(
            "node_agent_polls",
            "Counts polls of sources, by their result.",
            ("source", "result"),
            registry=self.registry,
        )
        self._poll_seconds = Histogram(
            "node_agent_poll_seconds",
            "Measures how long a request to a metadata source takes.",
            ("source",),
            registry=self.registry,
            buckets=_POLLING,
        )
        self._reports = Counter(
            "node_agent_reports",
            "Counts the reports that the agent has made.",
            ("announcement",),
            registry=self.registry,
        )
        self._acknowledging = Histogram(
            "node_agent_acknowledgement_seconds",
            "Measures the time from a report until the supervisor has acknowledged that it is durable.",
            registry=self.registry,
            buckets=_ACKNOWLEDGING,
        )

    def observe(self, outbox: NoticeOutbox, uplink: SupervisorUplink) -> None:
        """Adds the present state of the outbox and the uplink to each scrape; to be called once."""
        self.registry.register(_AgentStateCollector(outbox, uplink, self._clock, self.bulkhead))

    @guarded
    def on_poll(self, source: SourceName, result: PollResult, seconds: float | None) -> None:
        """Implements `node_agent.poller.OnPoll`."""
        self._polls.labels(source, result.name.lower()).inc()
        if seconds is not None:
            self._poll_seconds.labels(source).observe(seconds)

    @guarded
    def on_report(self, report: NoticeReport) -> None:
        self._reports.labels(report.announcement.name.lower()).inc()
        # Bounded like the outbox: a report leaves it acknowledged, or replaced by a later one on the same notice.
        self._reported_at[report.id] = self._clock.monotonic()

    @guarded
    def on_acknowledged(self, notice: NoticeId) -> None:
        at = self._reported_at.pop(notice, None)
        if at is not None:
            self._acknowledging.observe(self._clock.monotonic() - at)


@dataclass(frozen=True)
class _AgentStateCollector(Collector):
    """Reads the present state of the outbox and the uplink at each scrape."""

    outbox: NoticeOutbox
    uplink: SupervisorUplink
    clock: Clock
    bulkhead: Bulkhead

    def collect(self) -> Iterator[Metric]:
        ages = GaugeMetricFamily(
            "node_agent_poll_age_seconds",
            "Is the time since a source's last usable answer, or since the agent started; no sample without polls.",
            labels=("source",),
        )
        now = self.clock.monotonic()
        for status in self.outbox.statuses():
            if status.state is not PollResult.NOT_SPOT:
                since = self.uplink.started_at if status.last_good is None else status.last_good
                ages.add_metric((status.source,), now - since)
        yield ages
        connected = float(self.uplink.welcomed)
        yield GaugeMetricFamily(
            "node_agent_connected", "Is 1 while the supervisor has welcomed the agent on an open stream.", connected
        )
        yield CounterMetricFamily(
            "node_agent_connections",
            "Counts the streams on which the supervisor has welcomed the agent.",
            float(self.uplink.welcomes),
        )
        waiting = len(self.outbox.unacknowledged())
        yield GaugeMetricFamily(
            "node_agent_outbox_reports", "Counts reports that the supervisor has not acknowledged yet.", waiting
        )
        errors = CounterMetricFamily(
            "node_agent_internal_errors",
            "Counts unexpected exceptions, by the part of the agent that raised them.",
            labels=("where",),
        )
        for where in sorted({*_GUARDED, *self.bulkhead.counts}):
            errors.add_metric((where,), self.bulkhead.counts[where])
        yield errors
