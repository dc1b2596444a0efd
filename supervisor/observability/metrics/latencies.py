"""Metrics of latency: from a notice to the decision, and from the decision to the affected processes.

Directives are reported when they are sent, the decision behind them a moment later by the journal. Each waits here for
the other, for one decision of a job at a time.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram

from servicekit.metrics import exemplar
from supervisor.decide.grant import least_workers
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.domain.order import Directive, DirectiveKind
from supervisor.observability.journal import Change, JobChanged, JobForgotten
from supervisor.observability.transitions import NoticedHosts, is_stopped

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 1.25, 1.5, 2, 3, 5, 10, 30, 60, 300)
_MAX_UNMATCHED = 16
"""Directives of one job whose decision the journal has not reported yet, or that belong to no decision."""


@dataclass(frozen=True, slots=True)
class _Decided:
    """A decision about notices, the notice that caused it, the hosts it excludes, and its directives' generation."""

    generation: int
    at: float
    notice: ReclaimNotice | None
    hosts: frozenset[Host] = frozenset()

    def covers(self, directive: Directive) -> bool:
        """Whether the directive follows from this decision. A LEAVE may precede any decision about its host."""
        if directive.generation != self.generation:
            return False
        return directive.kind is not DirectiveKind.LEAVE or directive.host in self.hosts


@dataclass(slots=True)
class _Job:
    last: _Decided | None = None
    measured: set[DirectiveKind] = field(default_factory=set)
    unmatched: deque[tuple[Directive, float]] = field(default_factory=lambda: deque(maxlen=_MAX_UNMATCHED))


class Latencies:
    """A listener of the journal that also observes the directives that are sent.

    Args:
        registry: The registry that serves the metrics.
        noticed: Called once for each decision.
        now: Unix seconds.
    """

    name = "latency metrics"

    def __init__(self, registry: CollectorRegistry, noticed: NoticedHosts, now: Callable[[], float]) -> None:
        self._noticed = noticed
        self._now = now
        self._jobs: dict[JobName, _Job] = {}
        self._to_decision = _histogram(
            registry,
            "notice_to_decision_seconds",
            "Time from the first notice of a group to the decision to continue without its hosts, or from the notice "
            "that made a stop certain to the decision to stop.",
            "decision",
        )
        self._to_directive = _histogram(
            registry,
            "decision_to_directive_seconds",
            "Time from the durable decision until its directive was sent on all streams that were open then.",
            "directive",
        )
        self._in_all = _histogram(
            registry,
            "notice_to_directive_seconds",
            "Time from the notice until the directive was sent on all streams that were open then.",
            "directive",
        )

    def on_directives_sent(self, job: JobName, directives: Collection[Directive]) -> None:
        """See `supervisor.observability.hooks.MetricsHooks`."""
        now = self._now()
        for directive in directives:
            if directive.kind is not DirectiveKind.RUN:
                self._match(self._jobs.setdefault(job, _Job()), job, directive, now)

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
            self._decided("stop", after.name, _Decided(stop.generation, at, notice))
        elif new:
            notice = _first(self._noticed(after.name), new)
            self._decided("shrink", after.name, _Decided(after.decision.excluded_at, at, notice, new))

    def _decided(self, decision: str, name: JobName, decided: _Decided) -> None:
        job = self._jobs.setdefault(name, _Job())
        job.last, job.measured = decided, set()
        if decided.notice is not None:
            seconds = max(0.0, decided.at - decided.notice.first_seen)
            self._to_decision.labels(decision).observe(seconds, _traced(name, decided.notice))
        for directive, at in job.unmatched:
            if decided.covers(directive):
                self._measure(job, name, directive.kind, at)
        job.unmatched.clear()

    def _match(self, job: _Job, name: JobName, directive: Directive, at: float) -> None:
        if job.last is not None and job.last.covers(directive):
            self._measure(job, name, directive.kind, at)
        else:
            job.unmatched.append((directive, at))

    def _measure(self, job: _Job, name: JobName, kind: DirectiveKind, at: float) -> None:
        """Measures once for each decision and kind: processes that connect later receive the directive again."""
        if job.last is None or kind in job.measured:
            return
        job.measured.add(kind)
        notice = job.last.notice
        seconds = max(0.0, at - job.last.at)
        if notice is None:
            self._to_directive.labels(kind).observe(seconds)
            return
        traced = _traced(name, notice)
        self._to_directive.labels(kind).observe(seconds, traced)
        self._in_all.labels(kind).observe(max(0.0, at - notice.first_seen), traced)


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


def _first(noticed: Mapping[Host, ReclaimNotice], hosts: frozenset[Host]) -> ReclaimNotice | None:
    found = [noticed[host] for host in hosts if host in noticed and noticed[host].state is NoticeState.ACTIVE]
    return min(found, key=lambda notice: notice.first_seen, default=None)


def _traced(name: JobName, notice: ReclaimNotice) -> dict[str, str]:
    """An exemplar that leads from an outlier to its log lines."""
    return exemplar({"notice_id": notice.id, "job": name})


def _histogram(registry: CollectorRegistry, name: str, meaning: str, label: str) -> Histogram:
    return Histogram(f"job_supervisor_{name}", meaning, (label,), registry=registry, buckets=_LATENCIES)
