"""How long it takes from a notice to the decision, and from there to the processes concerned.

What the processes are told is known at once, the decision behind it a moment later from the journal: each waits here
for the other, for one decision of a job at a time.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram

from servicekit.metrics import exemplar
from supervisor.domain.directive import Directive, DirectiveKind
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.observability.journal import Change, JobChanged, JobForgotten
from supervisor.observability.transitions import NoticedHosts, is_stopped

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 1.25, 1.5, 2, 3, 5, 10, 30, 60, 300)
_MAX_UNHEARD = 16
"""Directives of one job whose decision the journal has not told yet; also those behind which there is none."""


@dataclass(frozen=True, slots=True)
class _Decided:
    """A decision about notices: when, for which one, the hosts it excludes, and the generation of its directives."""

    generation: int
    at: float
    notice: ReclaimNotice | None
    hosts: frozenset[Host] = frozenset()

    def means(self, directive: Directive) -> bool:
        """A LEAVE may also be that of a host whose notice nothing has been decided about yet."""
        if directive.generation != self.generation:
            return False
        return directive.kind is not DirectiveKind.LEAVE or directive.host in self.hosts


@dataclass(slots=True)
class _Job:
    last: _Decided | None = None
    measured: set[DirectiveKind] = field(default_factory=set)
    unheard: deque[tuple[Directive, float]] = field(default_factory=lambda: deque(maxlen=_MAX_UNHEARD))


class Latencies:
    """A listener of the journal, and of what processes are told.

    Args:
        registry: Where it is served from.
        noticed: Asked once for each decision.
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
            "From the first notice of a group to the decision to go on without its hosts, or from the notice that "
            "made it certain to the decision to stop.",
            "decision",
        )
        self._to_directive = _histogram(
            registry,
            "decision_to_directive_seconds",
            "From the durable decision until all streams that were open then were sent the directive.",
            "directive",
        )
        self._in_all = _histogram(
            registry, "notice_to_directive_seconds", "From the notice until they were sent it.", "directive"
        )

    def on_directives_sent(self, job: JobName, directives: Collection[Directive]) -> None:
        """Those processes of a job that were connected have just been sent these, each of them to at least one."""
        now = self._now()
        for directive in directives:
            if directive.kind is not DirectiveKind.RUN:
                self._told(self._jobs.setdefault(job, _Job()), job, directive, now)

    def on_change(self, change: Change) -> None:
        """See `supervisor.observability.journal.Listener`."""
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
        for directive, at in job.unheard:
            if decided.means(directive):
                self._measure(job, name, directive.kind, at)
        job.unheard.clear()

    def _told(self, job: _Job, name: JobName, directive: Directive, at: float) -> None:
        if job.last is not None and job.last.means(directive):
            self._measure(job, name, directive.kind, at)
        else:
            job.unheard.append((directive, at))

    def _measure(self, job: _Job, name: JobName, kind: DirectiveKind, at: float) -> None:
        """Once for each decision and kind: whoever connects later is told again."""
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

    None where none did: the job has lost workers without notice.
    """
    launcher = job.spec.launcher_host
    present = job.decision.hosts & job.observed.hosts
    notices = sorted(
        (notice for host, notice in noticed.items() if host in present and notice.first_seen <= now),
        key=lambda notice: notice.first_seen,
    )
    spare = max(0, len(present) - job.spec.min_workers)
    found = [notices[spare]] if spare < len(notices) else []
    if launcher is not None and launcher in noticed:
        found.append(noticed[launcher])
    return min(found, key=lambda notice: notice.first_seen, default=None)


def _first(noticed: Mapping[Host, ReclaimNotice], hosts: frozenset[Host]) -> ReclaimNotice | None:
    found = [noticed[host] for host in hosts if host in noticed and noticed[host].state is NoticeState.ACTIVE]
    return min(found, key=lambda notice: notice.first_seen, default=None)


def _traced(name: JobName, notice: ReclaimNotice) -> dict[str, str]:
    """What leads from an outlier to its lines in the log."""
    return exemplar({"notice_id": notice.id, "job": name})


def _histogram(registry: CollectorRegistry, name: str, meaning: str, label: str) -> Histogram:
    return Histogram(f"job_supervisor_{name}", meaning, (label,), registry=registry, buckets=_LATENCIES)
