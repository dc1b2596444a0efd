"""Counts notices, and measures how fast decisions and directives follow them."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from servicekit.metrics import LabelLimiter, exemplar
from supervisor.decide.grant import least_workers
from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice, Subject
from supervisor.domain.order import ProcessDirective, ProcessDirectiveKind
from supervisor.observability.groups import GroupOutcome
from supervisor.observability.journal import Change, JobChanged, JobForgotten, NoticeChanged, NoticedHosts, is_stopped
from supervisor.observability.metrics.pools import PoolLabels
from supervisor.observability.metrics.table import counter, histogram
from supervisor.observability.traces.follower import trace_of

MAX_SOURCES = 32
"""Agents name their own sources; there are eight known ones."""

_MAX_UNMATCHED = 16
"""Directives of one job whose decision the journal has not reported yet, or that belong to no decision."""


class NoticeMetrics:
    """Counts episodes of notices as a listener of the journal.

    Args:
        registry: The registry that serves the metrics.
        sources: Limits the values of the label `source`.
        pools: Makes the labels of pools.

    Attributes:
        machine: Returns the machine of a notice's subject. Called once for each episode.
    """

    name = "notice metrics"

    def __init__(self, registry: CollectorRegistry, sources: LabelLimiter, pools: PoolLabels) -> None:
        self.machine: Callable[[Subject], Machine] = lambda _subject: UNKNOWN_MACHINE
        self._sources = sources
        self._pools = pools
        self._notices = counter(registry, "notices")
        self._reclaims = counter(registry, "reclaims")
        self._lead = histogram(registry, "notice_lead_seconds")

    def on_change(self, change: Change) -> None:
        if not isinstance(change, NoticeChanged):
            return
        before, after = change.before, change.after
        is_new = before is None or before.episode != after.episode
        [source] = self._sources.of(after.source)
        if after.state is not NoticeState.ACTIVE:
            if is_new or before is None or before.state is not after.state:
                self._notices.labels(source, after.state).inc()
        elif is_new:
            self._notices.labels(source, "received").inc()
            self._reclaims.labels(source, *self._pools.of(self.machine(after.subject))).inc()
            if after.deadline is not None:
                self._lead.labels(source, after.notice_class).observe(max(0.0, after.deadline - after.first_seen))

    def on_report_refused(self, source: Source) -> None:
        self._notices.labels(*self._sources.of(source), "refused").inc()


@dataclass(frozen=True, slots=True)
class _MeasuredDecision:
    """A decision about notices, the notice that caused it, the hosts it excludes, and its directives' generation.

    `trace` is the label that leads to its trace, if there is one.
    """

    generation: int
    at: float
    notice: ReclaimNotice | None
    trace: Mapping[str, str]
    hosts: frozenset[Host] = frozenset()

    def covers(self, directive: ProcessDirective) -> bool:
        """Whether the directive follows from this decision. A LEAVE may precede any decision about its host."""
        if directive.generation != self.generation:
            return False
        return directive.kind is not ProcessDirectiveKind.LEAVE or directive.host in self.hosts


@dataclass(slots=True)
class _MeasuredJob:
    last: _MeasuredDecision | None = None
    measured: set[ProcessDirectiveKind] = field(default_factory=set)
    unmatched: deque[tuple[ProcessDirective, float]] = field(default_factory=lambda: deque(maxlen=_MAX_UNMATCHED))


class Latencies:
    """Measures, as a listener of the journal that also observes directives, how fast the supervisor reacts to notices.

    Directives are reported when they are sent, the decision behind them a moment later by the journal. Each waits here
    for the other, for one decision of a job at a time.

    Args:
        registry: The registry that serves the metrics.
        noticed: Called once for each decision.
        now: Unix seconds.
        traced: Whether there are traces, to which exemplars lead.
    """

    name = "latency metrics"

    def __init__(
        self, registry: CollectorRegistry, noticed: NoticedHosts, now: Callable[[], float], *, traced: bool = False
    ) -> None:
        self._traced = traced
        self._noticed = noticed
        self._now = now
        self._jobs: dict[JobName, _MeasuredJob] = {}
        self._to_decision = histogram(registry, "notice_to_decision_seconds")
        self._to_directive = histogram(registry, "decision_to_directive_seconds")
        self._in_all = histogram(registry, "notice_to_directive_seconds")

    def on_directives_sent(self, name: JobName, directives: Collection[ProcessDirective]) -> None:
        """Implements `supervisor.observability.hooks.MetricsHooks`."""
        now = self._now()
        for directive in directives:
            if directive.kind is ProcessDirectiveKind.RUN:
                continue
            job = self._jobs.setdefault(name, _MeasuredJob())
            if job.last is not None and job.last.covers(directive):
                self._measure(job, job.last, name, directive.kind, now)
            else:
                job.unmatched.append((directive, now))

    def on_change(self, change: Change) -> None:
        if isinstance(change, JobForgotten):
            self._jobs.pop(change.before.name, None)
        elif isinstance(change, JobChanged):
            if change.after.over:
                self._jobs.pop(change.after.name, None)
            elif change.before is not None:
                self._changed(change.before, change.after, change.at)

    def _changed(self, before: SupervisedJob, after: SupervisedJob, at: float) -> None:
        new = after.decision.exclusions - before.decision.exclusions
        stop = after.decision.stop
        if is_stopped(before, after) and stop is not None:
            notice = certain(before, self._noticed(after.name), at)
            decision = "stop"
            decided = _MeasuredDecision(stop.generation, at, notice, self._trace(after, GroupOutcome.STOPPED))
        elif new:
            noticed = self._noticed(after.name)
            found = [noticed[host] for host in new if host in noticed and noticed[host].state is NoticeState.ACTIVE]
            notice = min(found, key=lambda each: each.first_seen, default=None)
            trace, decision = self._trace(after, GroupOutcome.SHRUNK), "shrink"
            decided = _MeasuredDecision(after.decision.excluded_at, at, notice, trace, new)
        else:
            return
        job = self._jobs.setdefault(after.name, _MeasuredJob())
        job.last, job.measured = decided, set()
        if notice is not None:
            seconds = max(0.0, at - notice.first_seen)
            self._to_decision.labels(decision).observe(seconds, _example(decided.trace, notice, after.name))
        for directive, sent_at in job.unmatched:
            if decided.covers(directive):
                self._measure(job, decided, after.name, directive.kind, sent_at)
        job.unmatched.clear()

    def _measure(
        self, job: _MeasuredJob, last: _MeasuredDecision, name: JobName, kind: ProcessDirectiveKind, at: float
    ) -> None:
        """Measures once for each decision and kind: processes that connect later receive the directive again."""
        if kind in job.measured:
            return
        job.measured.add(kind)
        seconds = max(0.0, at - last.at)
        if last.notice is None:
            self._to_directive.labels(kind).observe(seconds)
            return
        example = _example(last.trace, last.notice, name)
        self._to_directive.labels(kind).observe(seconds, example)
        self._in_all.labels(kind).observe(max(0.0, at - last.notice.first_seen), example)

    def _trace(self, job: SupervisedJob, outcome: GroupOutcome) -> Mapping[str, str]:
        return {"trace_id": str(trace_of(job, outcome))} if self._traced else {}


def _example(trace: Mapping[str, str], notice: ReclaimNotice, job: JobName) -> dict[str, str]:
    """Returns an exemplar, which leads from an outlier to its trace and its log lines."""
    return exemplar({**trace, "notice_id": notice.id, "job": job})


def certain(job: SupervisedJob, noticed: Mapping[Host, ReclaimNotice], now: float) -> ReclaimNotice | None:
    """The notice that made a STOP certain: the launcher's, or the first that leaves fewer than the minimum.

    None if the job lost workers without a notice.
    """
    launcher = job.spec.launcher_host
    present = job.decision.hosts & job.observed.hosts
    notices = sorted(
        (notice for host, notice in noticed.items() if host in present and notice.first_seen <= now),
        key=lambda notice: notice.first_seen,
    )
    spare = max(0, len(present) - least_workers(job.spec))
    found = [notices[spare]] if spare < len(notices) else []
    if launcher is not None and launcher in noticed:
        found.append(noticed[launcher])
    return min(found, key=lambda notice: notice.first_seen, default=None)
