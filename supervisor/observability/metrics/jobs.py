"""Metrics of jobs: groups, suspensions, acknowledgements and their margins."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from supervisor.decide.policy import Policy
from supervisor.decide.stopping import answers
from supervisor.domain.ids import JobName
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Phase, Stop, SupervisedJob
from supervisor.observability.journal import Change, JobChanged
from supervisor.observability.metrics.named_jobs import NamedJobs
from supervisor.observability.transitions import (
    SUSPENDED,
    NoticedHosts,
    first_loss,
    is_stopped,
    is_suspended,
    is_unsaved,
)

_CHECKPOINTS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_MARGINS = (0, 1, 2, 5, 10, 20, 30, 60, 120, 180, 300)
"""No bucket below 0: a sum that can fall looks like a restart to Prometheus."""


class JobMetrics:
    """A listener of the journal.

    Args:
        registry: The registry that serves the metrics.
        noticed: Called when a STOP is acknowledged.
        policy: Gives the deadlines of notices that name no time.
        named: Told of the jobs whose STOP came too late.
    """

    name = "job metrics"

    def __init__(self, registry: CollectorRegistry, noticed: NoticedHosts, policy: Policy, named: NamedJobs) -> None:
        self._named = named
        self._noticed = noticed
        self._policy = policy
        self._groups = Counter(
            "job_supervisor_groups",
            "Decisions about groups of notices or lost hosts, by outcome: shrunk or stopped.",
            ("outcome",),
            registry=registry,
        )
        self._shrunk, self._stopped = self._groups.labels("shrunk"), self._groups.labels("stopped")
        self._exclusions = _counter(registry, "exclusions", "Hosts that were newly excluded.")
        self._suspensions = _counter(registry, "suspensions", "Suspensions of jobs after a STOP.")
        self._resumes = _counter(registry, "resumes", "Suspended jobs that resumed.")
        self._timeouts = _counter(
            registry, "timeouts", "Jobs that were given up because they waited longer than their maximum."
        )
        self._late = _counter(registry, "late_stops", "STOPs that were not saved before the deadline.")
        acknowledgements = Counter(
            "job_supervisor_acknowledgements", "Acknowledgements of STOPs by rank 0.", ("kind",), registry=registry
        )
        self._acknowledgements = {kind: acknowledgements.labels(kind) for kind in AcknowledgementKind}
        self._checkpoint = Histogram(
            "job_supervisor_acknowledgement_seconds",
            "Time from the decision to stop to its first acknowledgement, which is the time of the checkpoint.",
            registry=registry,
            buckets=_CHECKPOINTS,
        )
        self._margin = Histogram(
            "job_supervisor_acknowledgement_margin_seconds",
            "Time from the acknowledgement of a STOP to the first deadline; 0 if it came too late.",
            registry=registry,
            buckets=_MARGINS,
        )

    def on_change(self, change: Change) -> None:
        if not isinstance(change, JobChanged) or change.before is None:
            return
        self._excluded(change.before, change.after)
        self._phase_changed(change.before, change.after)
        self._answered(change.before, change.after)

    def _excluded(self, before: SupervisedJob, after: SupervisedJob) -> None:
        new = len(after.decision.exclusions - before.decision.exclusions)
        if new:
            self._shrunk.inc()
            self._exclusions.inc(new)

    def _phase_changed(self, before: SupervisedJob, after: SupervisedJob) -> None:
        if is_stopped(before, after):
            self._stopped.inc()
        if after.decision.phase is before.decision.phase:
            return
        if is_suspended(before, after):
            self._suspensions.inc()
            if is_unsaved(before, after):
                self._count_late(after.name)
        if after.decision.phase is Phase.RUNNING and before.decision.phase in SUSPENDED:
            self._resumes.inc()
        if after.decision.phase is Phase.TIMED_OUT:
            self._timeouts.inc()

    def _answered(self, before: SupervisedJob, after: SupervisedJob) -> None:
        answer, stop = after.observed.acknowledgement, before.decision.stop or after.decision.stop
        if answer is None or answer == before.observed.acknowledgement:
            return
        if not _continues(before.observed.acknowledgement, answer):
            self._acknowledgements[answer.kind].inc()
        has_failed = answer.kind is AcknowledgementKind.FAILED
        if stop is None or has_failed or not answers(answer, stop) or _is_answered(before, stop):
            return
        self._checkpoint.observe(max(0.0, answer.at - stop.since))
        end = first_loss(before, self._noticed, answer.at, self._policy)
        if end is not None:
            self._measure(before.name, answer, end)

    def _measure(self, job: JobName, answer: Acknowledgement, end: float) -> None:
        self._margin.observe(max(0.0, end - answer.at))
        if answer.at > end:
            self._count_late(job)

    def _count_late(self, job: JobName) -> None:
        self._late.inc()
        self._named.on_late_stop(job)


def _continues(before: Acknowledgement | None, answer: Acknowledgement) -> bool:
    """Whether an answer says of the same save only that the process has left."""
    return before is not None and (before.run, before.kind, before.rank) == (answer.run, answer.kind, answer.rank)


def _is_answered(job: SupervisedJob, stop: Stop) -> bool:
    return answers(job.observed.acknowledgement, stop)


def _counter(registry: CollectorRegistry, name: str, meaning: str) -> Counter:
    return Counter(f"job_supervisor_{name}", meaning, registry=registry)
