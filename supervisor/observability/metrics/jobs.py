"""Counts metrics of jobs as listeners of the journal: stops, checkpoints, agreements, steps, and single jobs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from supervisor.decide.policy import Policy
from supervisor.decide.stopping import answers
from supervisor.domain.agreement import Agreement, Purpose
from supervisor.domain.ids import JobId, JobName, bare_name, kind_of, namespace
from supervisor.domain.job import AcknowledgementKind, Phase, SupervisedJob
from supervisor.domain.order import Worker
from supervisor.observability import journal
from supervisor.observability.metrics.table import counter, counter_family, gauge_family, histogram


@dataclass(slots=True)
class NamedJob:
    phase: Phase
    workers: int = 0
    over: bool = False
    suspensions: int = 0
    late_stops: int = 0
    steps_lost: int = 0


@dataclass(eq=False)
class NamedJobs(Collector):
    """Serves metrics of single jobs. The first jobs are named; a job that is over gives its place to a new one.

    Args:
        most: The most jobs that are named; 0 names none.

    Attributes:
        jobs: The counts of the named jobs, to which others add.
    """

    name = "metrics of named jobs"
    most: int
    jobs: dict[JobName, NamedJob] = field(default_factory=dict)
    _unnamed: set[JobName] = field(default_factory=set)

    def begin(self, jobs: Iterable[SupervisedJob]) -> None:
        """Starts from the stored jobs; those that are not over come first."""
        for job in sorted(jobs, key=lambda job: (job.over, job.name)):
            self._follow(job)

    def on_change(self, change: journal.Change) -> None:
        if isinstance(change, journal.JobForgotten):
            self.jobs.pop(change.before.name, None)
            self._unnamed.discard(change.before.name)
        elif isinstance(change, journal.JobChanged):
            named = self._follow(change.after)
            if named is not None and change.before is not None and journal.is_suspended(change.before, change.after):
                named.suspensions += 1

    def collect(self) -> Iterator[Metric]:
        jobs = {(namespace(name), kind_of(name), bare_name(name)): job for name, job in self.jobs.items()}
        yield gauge_family("job_phase", (((*labels, job.phase), 1) for labels, job in jobs.items()))
        yield gauge_family("job_workers", ((labels, job.workers) for labels, job in jobs.items()))
        yield counter_family("job_suspensions", ((labels, job.suspensions) for labels, job in jobs.items()))
        yield counter_family("job_late_stops", ((labels, job.late_stops) for labels, job in jobs.items()))
        yield counter_family("job_steps_lost", ((labels, job.steps_lost) for labels, job in jobs.items()))
        yield gauge_family("unnamed_jobs", [((), len(self._unnamed))])

    def _follow(self, job: SupervisedJob) -> NamedJob | None:
        """Brings the series of a job up to date and returns them; None if there is no place for it."""
        named = self.jobs.get(job.name)
        if named is None and not job.over:
            if len(self.jobs) >= self.most:
                ended = next((name for name, each in self.jobs.items() if each.over), None)
                if ended is not None:
                    del self.jobs[ended]
            if len(self.jobs) < self.most:
                self._unnamed.discard(job.name)
                named = self.jobs[job.name] = NamedJob(Phase.WAITING)
        if named is None:
            (self._unnamed.discard if job.over else self._unnamed.add)(job.name)
            return None
        named.phase, named.workers, named.over = job.decision.phase, len(job.workers), job.over
        return named


class JobMetrics:
    """Counts groups, suspensions and acknowledgements, and measures how much time acknowledgements leave.

    Args:
        registry: The registry that serves the metrics.
        noticed: Called when a STOP is acknowledged.
        policy: Gives the deadlines of notices that name no time.
        named: Gets the jobs whose STOP came too late.
    """

    name = "job metrics"

    def __init__(
        self, registry: CollectorRegistry, noticed: journal.NoticedHosts, policy: Policy, named: NamedJobs
    ) -> None:
        self._named = named
        self._noticed = noticed
        self._policy = policy
        groups = counter(registry, "groups")
        self._shrunk, self._stopped = groups.labels("shrunk"), groups.labels("stopped")
        self._exclusions = counter(registry, "exclusions")
        self._suspensions = counter(registry, "suspensions")
        self._resumes = counter(registry, "resumes")
        self._timeouts = counter(registry, "timeouts")
        self._late = counter(registry, "late_stops")
        acknowledgements = counter(registry, "acknowledgements")
        self._acknowledgements = {kind: acknowledgements.labels(kind) for kind in AcknowledgementKind}
        self._checkpoint = histogram(registry, "acknowledgement_seconds")
        self._margin = histogram(registry, "acknowledgement_margin_seconds")

    def on_change(self, change: journal.Change) -> None:
        if not isinstance(change, journal.JobChanged) or change.before is None:
            return
        before, after = change.before, change.after
        if new := len(after.decision.exclusions - before.decision.exclusions):
            self._shrunk.inc()
            self._exclusions.inc(new)
        if journal.is_stopped(before, after):
            self._stopped.inc()
        if after.decision.phase is not before.decision.phase:
            if journal.is_suspended(before, after):
                self._suspensions.inc()
                if journal.is_unsaved(before, after):
                    self._count_late(after.name)
            if after.decision.phase is Phase.RUNNING and before.decision.phase in journal.SUSPENDED:
                self._resumes.inc()
            if after.decision.phase is Phase.TIMED_OUT:
                self._timeouts.inc()
        self._answered(before, after)

    def _answered(self, before: SupervisedJob, after: SupervisedJob) -> None:
        earlier, answer = before.observed.acknowledgement, after.observed.acknowledgement
        stop = before.decision.stop or after.decision.stop
        if answer is None or answer == earlier:
            return
        # A process that leaves after its save acknowledges the same save again.
        key = (answer.run, answer.kind, answer.rank)
        if earlier is None or (earlier.run, earlier.kind, earlier.rank) != key:
            self._acknowledgements[answer.kind].inc()
        has_failed = answer.kind is AcknowledgementKind.FAILED
        if stop is None or has_failed or not answers(answer, stop) or answers(earlier, stop):
            return
        self._checkpoint.observe(max(0.0, answer.at - stop.since))
        end = journal.first_loss(before, self._noticed, answer.at, self._policy)
        if end is not None:
            self._margin.observe(max(0.0, end - answer.at))
            if answer.at > end:
                self._count_late(before.name)

    def _count_late(self, job: JobName) -> None:
        self._late.inc()
        if named := self._named.jobs.get(job):
            named.late_stops += 1


class StepsLost:
    """Counts the steps that a job repeats after a resume; it also observes the steps that processes report.

    The acknowledgement of a STOP names the step that rank 0 had reached. The first step that rank 0 of the next run
    reports may already be a later one than its first, so the difference is a lower bound.

    Args:
        registry: The registry that serves the metric.
        named: Gets the jobs that lost steps.
    """

    name = "step metrics"

    def __init__(self, registry: CollectorRegistry, named: NamedJobs) -> None:
        self._named = named
        self._lost = counter(registry, "steps_lost")
        self._reached = dict[JobId, tuple[int, int]]()

    def on_change(self, change: journal.Change) -> None:
        if isinstance(change, journal.JobForgotten):
            self._reached.pop(change.before.id, None)
        if not isinstance(change, journal.JobChanged):
            return
        job, answer = change.after.id, change.after.observed.acknowledgement
        if change.after.over:
            self._reached.pop(job, None)
        elif answer is not None and answer.step is not None:
            before = None if change.before is None else change.before.observed.acknowledgement
            if answer != before:
                self._reached[job] = (answer.run, answer.step)

    def on_step(self, worker: Worker, step: int | None) -> None:
        reached = self._reached.get(worker.job)
        if reached is None or step is None or worker.rank != 0 or worker.run <= reached[0]:
            return
        del self._reached[worker.job]
        lost = max(0, reached[1] - step)
        self._lost.inc(lost)
        if named := self._named.jobs.get(worker.job.name):
            named.steps_lost += lost


class AgreementMetrics:
    """Counts agreements on a step, and the rounds of torchrun that some of them lead to."""

    name = "agreement metrics"

    def __init__(self, registry: CollectorRegistry) -> None:
        self._outcomes = counter(registry, "agreements")
        for purpose in Purpose:
            for outcome in ("committed", "missed", "withdrawn", "failed"):
                self._outcomes.labels(purpose, outcome)
        self._seconds = histogram(registry, "agreement_seconds")
        self._rounds = counter(registry, "rounds")
        for mode in ("in_process", "restart"):
            self._rounds.labels(mode)

    def on_change(self, change: journal.Change) -> None:
        if not isinstance(change, journal.JobChanged) or change.before is None:
            return
        earlier, round_ = change.before.decision.round, change.after.decision.round
        if round_ is not None and (earlier is None or earlier.number < round_.number):
            self._rounds.labels("in_process" if round_.in_process else "restart").inc()
        before, after = change.before.decision.agreement, change.after.decision.agreement
        if before == after:
            return
        outcome = _outcome(before, change.before, change.after)
        if before is not None and outcome is not None:
            self._outcomes.labels(before.purpose, outcome).inc()
        if after is not None and after.committed:
            self._outcomes.labels(after.purpose, "committed").inc()
            self._seconds.observe(max(0.0, after.since - after.began))


def _outcome(before: Agreement | None, earlier: SupervisedJob, job: SupervisedJob) -> str | None:
    """Finds how an agreement ended; None if it goes on, or ended with a commit."""
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
