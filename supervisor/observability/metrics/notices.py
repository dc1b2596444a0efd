"""Metrics of notices."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from servicekit.metrics import LabelLimiter
from supervisor.domain.ids import Source
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.observability.hooks import NodeLocations
from supervisor.observability.journal import Change, NoticeChanged

MAX_SOURCES = 32
"""Agents name their own sources; there are eight known ones."""

_MAX_PLACES = 200
_LEADS = (2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 240, 300, 450, 600, 1800, 3600)


class NoticeMetrics:
    """A listener of the journal.

    Args:
        registry: The registry that serves the metrics.
        locations: Called once for each episode.
        sources: Limits the values of the label `source`.
    """

    name = "notice metrics"

    def __init__(self, registry: CollectorRegistry, locations: NodeLocations, sources: LabelLimiter) -> None:
        self._locations = locations
        self._sources = sources
        self._pairs = LabelLimiter(_MAX_PLACES)
        self._notices = Counter(
            "job_supervisor_notices",
            "Episodes of notices by outcome, and refused reports.",
            ("source", "outcome"),
            registry=registry,
        )
        self._reclaims = Counter(
            "job_supervisor_reclaims",
            "Received episodes of notices, by the location of the subject.",
            ("source", "zone", "instance_type"),
            registry=registry,
        )
        self._lead = Histogram(
            "job_supervisor_notice_lead_seconds",
            "Time from the receipt of a notice to its deadline, if the source names one.",
            ("source", "class"),
            registry=registry,
            buckets=_LEADS,
        )

    def on_change(self, change: Change) -> None:
        if not isinstance(change, NoticeChanged):
            return
        before, after = change.before, change.after
        is_new = before is None or before.episode != after.episode
        if after.state is not NoticeState.ACTIVE:
            if is_new or before is None or before.state is not after.state:
                self._count(after.source, after.state)
        elif is_new:
            self._received(after)

    def on_report_refused(self, source: Source) -> None:
        self._count(source, "refused")

    def _received(self, notice: ReclaimNotice) -> None:
        self._count(notice.source, "received")
        [source], location = self._sources.of(notice.source), self._locations(notice.subject)
        self._reclaims.labels(source, *self._pairs.of(location.zone, location.instance_type)).inc()
        if notice.deadline is not None:
            self._lead.labels(source, notice.notice_class).observe(max(0.0, notice.deadline - notice.first_seen))

    def _count(self, source: Source, outcome: str) -> None:
        self._notices.labels(*self._sources.of(source), outcome).inc()
