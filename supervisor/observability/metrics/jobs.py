"""What becomes of jobs, counted and measured."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from supervisor.decide.policy import Policy
from supervisor.decide.situation import Situation, View
from supervisor.decide.stopping import answers, breaks_at
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Phase, Stop, SupervisedJob
from supervisor.observability.journal import Change, JobChanged
from supervisor.observability.transitions import SUSPENDED, NoticedHosts, is_stopped, is_suspended

_CHECKPOINTS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_MARGINS = (0, 1, 2, 5, 10, 20, 30, 60, 120, 180, 300)
"""None below 0: a sum that can fall looks like a restart to Prometheus."""


def breaks(job: SupervisedJob, noticed: NoticedHosts, now: float, policy: Policy) -> float | None:
    """When the first of the hosts that a job's run needs is gone; None where none of them has a notice."""
    view = View(notices=noticed(job.name))
    return breaks_at(Situation(job, job.decision, view, now, policy))


class JobMetrics:
    """A listener of the journal.

    Args:
        registry: Where it is served from.
        noticed: Asked when a STOP is acknowledged.
        policy: The deadlines of notices that name none.
    """

    name = "job metrics"

    def __init__(self, registry: CollectorRegistry, noticed: NoticedHosts, policy: Policy) -> None:
        self._noticed = noticed
        self._policy = policy
        self._groups = Counter(
            "job_supervisor_groups",
            "Decisions about groups of notices or losses: hosts newly excluded, or the job stopped.",
            ("outcome",),
            registry=registry,
        )
        self._shrunk, self._stopped = self._groups.labels("shrunk"), self._groups.labels("stopped")
        self._exclusions = _counter(registry, "exclusions", "Hosts newly excluded.")
        self._suspensions = _counter(registry, "suspensions", "Jobs suspended after a STOP.")
        self._resumes = _counter(registry, "resumes", "Suspended jobs that run again.")
        self._timeouts = _counter(registry, "timeouts", "Jobs given up as they waited longer than they may.")
        self._late = _counter(registry, "late_stops", "STOPs whose deadline passed without an acknowledgement.")
        acknowledgements = Counter(
            "job_supervisor_acknowledgements", "Acknowledgements of STOPs by rank 0.", ("kind",), registry=registry
        )
        self._acknowledgements = {kind: acknowledgements.labels(kind) for kind in AcknowledgementKind}
        self._checkpoint = Histogram(
            "job_supervisor_acknowledgement_seconds",
            "From the decision to stop to its first acknowledgement: the checkpoint.",
            registry=registry,
            buckets=_CHECKPOINTS,
        )
        self._margin = Histogram(
            "job_supervisor_acknowledgement_margin_seconds",
            "What was left until the first deadline at the acknowledgement; 0 where it came too late.",
            registry=registry,
            buckets=_MARGINS,
        )

    def on_change(self, change: Change) -> None:
        """See `supervisor.observability.journal.Listener`."""
        if not isinstance(change, JobChanged) or change.before is None:
            return
        self._excluded(change.before, change.after)
        self._moved(change.before, change.after)
        self._answered(change.before, change.after)

    def _excluded(self, before: SupervisedJob, after: SupervisedJob) -> None:
        new = len(after.decision.exclusions - before.decision.exclusions)
        if new:
            self._shrunk.inc()
            self._exclusions.inc(new)

    def _moved(self, before: SupervisedJob, after: SupervisedJob) -> None:
        if is_stopped(before, after):
            self._stopped.inc()
        if after.decision.phase is before.decision.phase:
            return
        if is_suspended(before, after):
            self._suspensions.inc()
            if _ran_out_of_time(before, after):
                self._late.inc()
        if after.decision.phase is Phase.RUNNING and before.decision.phase in SUSPENDED:
            self._resumes.inc()
        if after.decision.phase is Phase.TIMED_OUT:
            self._timeouts.inc()

    def _answered(self, before: SupervisedJob, after: SupervisedJob) -> None:
        answer, stop = after.observed.acknowledgement, before.decision.stop or after.decision.stop
        if answer is None or answer == before.observed.acknowledgement:
            return
        self._acknowledgements[answer.kind].inc()
        if stop is None or not answers(answer, stop) or _is_answered(before, stop):
            return
        self._checkpoint.observe(max(0.0, answer.at - stop.since))
        end = breaks(before, self._noticed, answer.at, self._policy)
        if end is not None:
            self._measure(answer, end)

    def _measure(self, answer: Acknowledgement, end: float) -> None:
        self._margin.observe(max(0.0, end - answer.at))
        if answer.at > end:
            self._late.inc()


def _is_answered(job: SupervisedJob, stop: Stop) -> bool:
    return answers(job.observed.acknowledgement, stop)


def _ran_out_of_time(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Neither had rank 0 answered, nor had the run ended by itself."""
    stop = before.decision.stop
    return stop is not None and after.observed.running and not _is_answered(after, stop)


def _counter(registry: CollectorRegistry, name: str, meaning: str) -> Counter:
    return Counter(f"job_supervisor_{name}", meaning, registry=registry)
