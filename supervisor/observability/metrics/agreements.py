"""Metrics of agreements on a step, and of the rounds of torchrun that some of them lead to."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from supervisor.domain.agreement import Agreement, Purpose, Round
from supervisor.domain.job import SupervisedJob
from supervisor.observability.journal import Change, JobChanged

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_OUTCOMES = ("committed", "missed", "withdrawn", "failed")


class AgreementMetrics:
    """A listener of the journal."""

    name = "agreement metrics"

    def __init__(self, registry: CollectorRegistry) -> None:
        self._outcomes = Counter(
            "job_supervisor_agreements",
            "Agreements on a step, by purpose and outcome: committed, missed (a rank had gone on before the commit), "
            "withdrawn, or failed (the ranks did not agree in time).",
            ("purpose", "outcome"),
            registry=registry,
        )
        for purpose in Purpose:
            for outcome in _OUTCOMES:
                self._outcomes.labels(purpose, outcome)
        self._seconds = Histogram(
            "job_supervisor_agreement_seconds",
            "Time from the first poll of an agreement to its commit.",
            registry=registry,
            buckets=_SECONDS,
        )
        self._rounds = Counter(
            "job_supervisor_rounds",
            "Rounds of torchrun that were decided, by how processes enter them: in_process, or restart.",
            ("mode",),
            registry=registry,
        )
        for mode in ("in_process", "restart"):
            self._rounds.labels(mode)

    def on_change(self, change: Change) -> None:
        if not isinstance(change, JobChanged) or change.before is None:
            return
        self._count_round(change.before.decision.round, change.after.decision.round)
        before, after = change.before.decision.agreement, change.after.decision.agreement
        if before == after:
            return
        outcome = _outcome(before, change.before, change.after)
        if before is not None and outcome is not None:
            self._outcomes.labels(before.purpose, outcome).inc()
        if after is not None and after.committed:
            self._outcomes.labels(after.purpose, "committed").inc()
            self._seconds.observe(max(0.0, after.since - after.began))

    def _count_round(self, before: Round | None, after: Round | None) -> None:
        if after is not None and (before is None or before.number < after.number):
            self._rounds.labels("in_process" if after.in_process else "restart").inc()


def _outcome(before: Agreement | None, earlier: SupervisedJob, job: SupervisedJob) -> str | None:
    """How an agreement ended, if it did and not with a commit."""
    after = job.decision.agreement
    if before is None or (after is not None and after.committed):
        return None
    if before.committed:
        return "missed" if after is not None and after.purpose is before.purpose else None
    if after is not None:
        return None if after.purpose is before.purpose else "withdrawn"
    acted = job.decision.stop is not None
    if before.purpose in (Purpose.RENDEZVOUS, Purpose.REGROUP):
        acted = earlier.decision.round != job.decision.round
    is_withdrawn = before.purpose is not Purpose.CHECKPOINT and not acted and not job.over
    return "withdrawn" if is_withdrawn else "failed"
