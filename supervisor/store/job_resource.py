"""A SupervisedJob as it is written and read, and how the domain's job becomes one and comes back."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Self

from msgspec import structs

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata
from supervisor.decide.reasons import left_out
from supervisor.domain.capability import Capability
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import (
    Acknowledgement,
    AcknowledgementKind,
    Decision,
    Framework,
    Growth,
    Observed,
    Phase,
    Result,
    Spec,
    Stop,
    SupervisedJob,
)
from supervisor.store.names import bare_name, job_name
from supervisor.store.resources import GROUP, VERSION, Body, Condition, instant, maybe, seconds, truth

# Some 200 KB a job of thousands of workers: a page of 500 would be 100 MB.
JOBS = Resource(group=GROUP, version=VERSION, kind="SupervisedJob", plural="supervisedjobs", namespaced=True, page=50)

_OPERATED = frozenset(
    {
        Capability.MAKES_HOSTS,
        Capability.STARTS_RUNS,
        Capability.GROWS,
        Capability.REPLACES_HOSTS,
        Capability.SIGNALS_PODS,
    }
)
"""What `operated` meant before an object listed its capabilities."""


class JobSpec(Body, frozen=True, kw_only=True):
    """What the job asks for; see `Spec`."""

    epoch: int
    name: str
    uid: str
    framework: Framework
    min_workers: int
    max_workers: int
    requested_workers: int
    max_wait_seconds: float
    launcher_host: str | None = None
    operated: bool = False
    capabilities: tuple[str, ...] | None = None
    least_to_start: int | None = None


class Hosts(Body, frozen=True, kw_only=True):
    """All hosts of a job, each once: three lists that repeat them made 4,000 workers three times as large."""

    workers: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    missing_excluded: tuple[str, ...] = ()

    @classmethod
    def of(cls, listed: frozenset[Host], granted: frozenset[Host], excluded: frozenset[Host]) -> Self:
        """From the launcher's list, what the decision gives to the job, and what of that is left out."""
        used = granted - excluded
        return cls(
            workers=_sorted(used & listed),
            excluded=_sorted(excluded & listed),
            waiting=_sorted(listed - granted),
            missing=_sorted(used - listed),
            missing_excluded=_sorted(excluded - listed),
        )

    def listed(self) -> frozenset[Host]:
        """The launcher's list."""
        return _hosts(self.workers, self.excluded, self.waiting)

    def granted(self) -> frozenset[Host]:
        """The job's to use, with those that are left out."""
        return _hosts(self.workers, self.missing).union(self.left_out())

    def left_out(self) -> frozenset[Host]:
        """Left out because they will be reclaimed."""
        return _hosts(self.excluded, self.missing_excluded)


class AcknowledgementBody(Body, frozen=True, kw_only=True):
    """See `Acknowledgement`."""

    run: int
    generation: int
    kind: AcknowledgementKind
    step: int | None = None
    at: datetime


class ObservedBody(Body, frozen=True, kw_only=True):
    """See `Observed`, without its hosts."""

    launcher: str
    instance: str
    registered_at: datetime
    revision: int
    run: int
    running: bool
    exit_code: int | None = None
    launcher_lost_since: datetime | None = None
    restarts: int
    applied: int
    ending: bool = False
    result: Result | None = None
    acknowledgement: AcknowledgementBody | None = None


class StopBody(Body, frozen=True, kw_only=True):
    """See `Stop`."""

    run: int
    generation: int
    since: datetime
    everyone: bool


class GrowthBody(Body, frozen=True, kw_only=True):
    """See `Growth`."""

    workers: int
    number: int
    until: datetime
    failed: int


class DecisionBody(Body, frozen=True, kw_only=True):
    """See `Decision`, without its hosts."""

    generation: int
    phase: Phase
    reason: str
    run: int
    excluded_at: int
    failed_resumes: int
    window_until: datetime | None = None
    below_min_since: datetime | None = None
    waiting_since: datetime | None = None
    capacity_since: datetime | None = None
    resume_until: datetime | None = None
    not_before: datetime | None = None
    stop: StopBody | None = None
    growth: GrowthBody | None = None


class JobStatus(Body, frozen=True, kw_only=True):
    """What is so, and what was decided; of the job with that uid."""

    epoch: int
    uid: str
    workers: int
    excluded: int
    hosts: Hosts
    observed: ObservedBody
    decision: DecisionBody
    conditions: tuple[Condition, ...] = ()


class JobResource(Body, frozen=True, kw_only=True):
    """One SupervisedJob."""

    metadata: Metadata
    spec: JobSpec
    status: JobStatus | None = None

    def name(self, home: str) -> JobName | None:
        """Whose it is; None for another supervisor's."""
        return job_name(self.metadata.key, self.spec.name, home)

    def value(self, home: str) -> SupervisedJob | None:
        """As the domain says it; None where its registration was never finished, or it is another supervisor's."""
        name = self.name(home)
        if name is None or self.status is None or self.status.uid != self.spec.uid:
            return None
        return SupervisedJob(
            name=name,
            uid=self.spec.uid,
            spec=_spec(self.spec),
            observed=_observed(self.status),
            decision=_decision(self.status),
        )


def job_spec(job: SupervisedJob, epoch: int) -> JobSpec:
    """What it asks for."""
    spec = job.spec
    return JobSpec(
        epoch=epoch,
        name=bare_name(job.name),
        uid=job.uid,
        framework=spec.framework,
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        requested_workers=spec.requested_workers,
        max_wait_seconds=spec.max_wait_seconds,
        launcher_host=spec.launcher_host,
        # Versions before the capabilities know this field alone.
        operated=spec.can(Capability.MAKES_HOSTS),
        capabilities=tuple(sorted(spec.capabilities)),
        least_to_start=spec.least_to_start,
    )


def job_status(job: SupervisedJob, epoch: int, before: Iterable[Condition], now: float) -> JobStatus:
    """What is so and what was decided; a condition that stays as it was `before` keeps its time."""
    hosts, excluded = job.decision.hosts, job.decision.exclusions
    return JobStatus(
        epoch=epoch,
        uid=job.uid,
        workers=len(hosts - excluded),
        excluded=len(excluded),
        hosts=Hosts.of(job.observed.hosts, hosts, excluded),
        observed=_observed_body(job.observed),
        decision=_decision_body(job.decision),
        conditions=_conditions(job.decision, {each.type: each for each in before}, instant(now)),
    )


_PHASES = {
    "Running": {Phase.RUNNING, Phase.SHRINKING},
    "Suspended": {Phase.SUSPENDED},
    "Finished": {Phase.FINISHED, Phase.TIMED_OUT},
}


def _conditions(decision: Decision, before: dict[str, Condition], now: datetime) -> tuple[Condition, ...]:
    """Each keeps its time as long as it is what it was."""
    return tuple(
        structs.replace(each, last_transition_time=before[each.type].last_transition_time)
        if each.type in before and before[each.type].status == each.status
        else each
        for each in _at(decision, now)
    )


def _at(decision: Decision, now: datetime) -> Iterator[Condition]:
    for kind, phases in _PHASES.items():
        yield _condition(kind, now, decision.phase, decision.reason, holds=decision.phase in phases)
    yield _disrupted(decision, now)


def _disrupted(decision: Decision, now: datetime) -> Condition:
    """Whether a reclaim, or the loss of hosts, keeps the job from what it asked for."""
    kind = "Disrupted"
    if decision.phase in {Phase.STOPPING, Phase.SUSPENDED}:
        return _condition(kind, now, decision.phase, decision.reason, holds=True)
    if decision.exclusions:
        return _condition(kind, now, "HostsExcluded", left_out(decision.exclusions), holds=True)
    if decision.window_until is not None:
        return _condition(kind, now, "CollectingGroup", decision.reason, holds=True)
    return _condition(kind, now, decision.phase, decision.reason, holds=False)


def _condition(kind: str, now: datetime, reason: str, message: str, *, holds: bool) -> Condition:
    return Condition(type=kind, status=truth(holds=holds), reason=reason, message=message, last_transition_time=now)


def _spec(body: JobSpec) -> Spec:
    return Spec(
        framework=body.framework,
        min_workers=body.min_workers,
        max_workers=body.max_workers,
        requested_workers=body.requested_workers,
        max_wait_seconds=body.max_wait_seconds,
        launcher_host=None if body.launcher_host is None else Host(body.launcher_host),
        capabilities=_capabilities(body),
        least_to_start=body.least_to_start,
    )


def _capabilities(body: JobSpec) -> frozenset[Capability]:
    """Those that this version knows; an object of a version before them says in one word whether it has all."""
    if body.capabilities is None:
        return _OPERATED if body.operated else frozenset()
    return frozenset(capability for capability in Capability if capability in body.capabilities)


def _observed_body(observed: Observed) -> ObservedBody:
    answer = observed.acknowledgement
    return ObservedBody(
        launcher=observed.launcher,
        instance=observed.instance,
        registered_at=instant(observed.registered_at),
        revision=observed.revision,
        run=observed.run,
        running=observed.running,
        exit_code=observed.exit_code,
        launcher_lost_since=maybe(observed.launcher_lost_since),
        restarts=observed.restarts,
        applied=observed.applied,
        ending=observed.ending,
        result=observed.result,
        acknowledgement=None
        if answer is None
        else AcknowledgementBody(
            run=answer.run,
            generation=answer.generation,
            kind=answer.kind,
            step=answer.step,
            at=instant(answer.at),
        ),
    )


def _observed(status: JobStatus) -> Observed:
    body, answer = status.observed, status.observed.acknowledgement
    return Observed(
        launcher=body.launcher,
        instance=body.instance,
        registered_at=body.registered_at.timestamp(),
        revision=body.revision,
        hosts=status.hosts.listed(),
        run=body.run,
        running=body.running,
        exit_code=body.exit_code,
        launcher_lost_since=seconds(body.launcher_lost_since),
        restarts=body.restarts,
        applied=body.applied,
        ending=body.ending,
        result=body.result,
        acknowledgement=None
        if answer is None
        else Acknowledgement(
            run=answer.run,
            generation=answer.generation,
            kind=answer.kind,
            step=answer.step,
            at=answer.at.timestamp(),
        ),
    )


def _decision_body(decision: Decision) -> DecisionBody:
    stop, growth = decision.stop, decision.growth
    return DecisionBody(
        generation=decision.generation,
        phase=decision.phase,
        reason=decision.reason,
        run=decision.run,
        excluded_at=decision.excluded_at,
        failed_resumes=decision.failed_resumes,
        window_until=maybe(decision.window_until),
        below_min_since=maybe(decision.below_min_since),
        waiting_since=maybe(decision.waiting_since),
        capacity_since=maybe(decision.capacity_since),
        resume_until=maybe(decision.resume_until),
        not_before=maybe(decision.not_before),
        stop=None
        if stop is None
        else StopBody(run=stop.run, generation=stop.generation, since=instant(stop.since), everyone=stop.everyone),
        growth=None
        if growth is None
        else GrowthBody(
            workers=growth.workers, number=growth.number, until=instant(growth.until), failed=growth.failed
        ),
    )


def _decision(status: JobStatus) -> Decision:
    body, stop, growth = status.decision, status.decision.stop, status.decision.growth
    return Decision(
        generation=body.generation,
        phase=body.phase,
        reason=body.reason,
        run=body.run,
        hosts=status.hosts.granted(),
        exclusions=status.hosts.left_out(),
        excluded_at=body.excluded_at,
        window_until=seconds(body.window_until),
        below_min_since=seconds(body.below_min_since),
        waiting_since=seconds(body.waiting_since),
        capacity_since=seconds(body.capacity_since),
        resume_until=seconds(body.resume_until),
        failed_resumes=body.failed_resumes,
        not_before=seconds(body.not_before),
        stop=None
        if stop is None
        else Stop(run=stop.run, generation=stop.generation, since=stop.since.timestamp(), everyone=stop.everyone),
        growth=None
        if growth is None
        else Growth(workers=growth.workers, number=growth.number, until=growth.until.timestamp(), failed=growth.failed),
    )


def _hosts(*lists: tuple[str, ...]) -> frozenset[Host]:
    return frozenset(Host(name) for names in lists for name in names)


def _sorted(hosts: frozenset[Host]) -> tuple[str, ...]:
    return tuple(sorted(hosts))
