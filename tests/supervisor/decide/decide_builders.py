"""Builds facts for decisions, and the reactions of an obedient launcher and rank 0. Instants count from `T0`."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from supervisor.decide.directives import order_for
from supervisor.decide.plan import Plan, plan
from supervisor.decide.policy import Policy
from supervisor.decide.registration import acknowledge
from supervisor.decide.situation import JobFacts, RankZero
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import (
    Acknowledgement,
    AcknowledgementKind,
    Decision,
    Framework,
    Observed,
    Phase,
    Spec,
    SupervisedJob,
)
from supervisor.domain.notice import Announcement, NoticeState, ReclaimNotice, Report, Subject, SubjectKind
from supervisor.domain.order import OrderKind, Worker

T0 = 1_700_000_000.0
POLICY = Policy()
METADATA = Source("metadata")


class Step(NamedTuple):
    """A job after a decision about it, and the plan that holds the decision."""

    job: SupervisedJob
    plan: Plan


def hosts(*numbers: int) -> frozenset[Host]:
    """Returns hosts by their numbers: `hosts(1, 2)` are n1 and n2."""
    return frozenset(Host(f"n{number}") for number in numbers)


def first(count: int) -> frozenset[Host]:
    """The hosts n1 to n`count`."""
    return hosts(*range(1, count + 1))


def spec(least: int = 3, most: int = 6, *, requested: int | None = None, max_wait: float = 0.0) -> Spec:
    """A Horovod job of `least` to `most` hosts, whose launcher is not on any of them."""
    return Spec(
        framework=Framework.HOROVOD,
        min_workers=least,
        max_workers=most,
        requested_workers=most if requested is None else requested,
        max_wait_seconds=max_wait,
    )


def running_job(asked: Spec | None = None, workers: int = 6, *, name: str = "job") -> SupervisedJob:
    """A job whose first run is running on n1 to n`workers`, with every action in place."""
    observed = Observed(
        launcher="launcher", instance="instance", registered_at=T0, hosts=first(workers), run=1, running=True, applied=5
    )
    decision = Decision(generation=5, phase=Phase.RUNNING, reason="It runs.", run=1, hosts=first(workers))
    return SupervisedJob(name=JobName(name), uid=name, spec=asked or spec(), observed=observed, decision=decision)


def waiting_job(
    asked: Spec | None = None, listed: frozenset[Host] | None = None, *, since: float = T0, name: str = "job"
) -> SupervisedJob:
    listed = first(6) if listed is None else listed
    observed = Observed(launcher="launcher", instance="instance", registered_at=since, hosts=listed)
    decision = Decision(generation=1, phase=Phase.WAITING, reason="It waits.", waiting_since=since)
    return SupervisedJob(name=JobName(name), uid=name, spec=asked or spec(), observed=observed, decision=decision)


def suspended_job(
    asked: Spec | None = None, listed: frozenset[Host] | None = None, *, since: float = T0, name: str = "job"
) -> SupervisedJob:
    """A job whose first run was stopped and whose hosts were given back."""
    job = waiting_job(asked, listed, since=since, name=name)
    decision = Decision(generation=9, phase=Phase.SUSPENDED, reason="It is suspended.", run=1, waiting_since=since)
    return observing(replace(job, decision=decision), run=1, exit_code=-15, applied=9)


def observing(job: SupervisedJob, **changes: object) -> SupervisedJob:
    return replace(job, observed=replace(job.observed, **changes))  # type: ignore[arg-type]  # Names are its fields.


def notice(
    number: int, *, left: float | None = 300.0, seen: float = T0, state: NoticeState = NoticeState.ACTIVE
) -> ReclaimNotice:
    """A notice that n`number` will be gone `left` seconds after the notice was first seen."""
    return ReclaimNotice(
        source=METADATA,
        subject=Subject(SubjectKind.NODE, f"n{number}", f"uid-{number}"),
        episode=1,
        state=state,
        first_seen=seen,
        deadline=None if left is None else seen + left,
        announced="",
        message="",
        session=1,
        revision=1,
    )


def noticed(*notices: ReclaimNotice) -> dict[Host, ReclaimNotice]:
    return {Host(each.subject.name): each for each in notices}


def report(
    number: int = 1,
    *,
    session: int = 1,
    revision: int = 1,
    announcement: Announcement = Announcement.ACTIVE,
    left: float | None = 300.0,
) -> Report:
    return Report(
        source=METADATA,
        subject=Subject(SubjectKind.NODE, f"n{number}", f"uid-{number}"),
        session=session,
        revision=revision,
        announcement=announcement,
        seconds_left=left,
    )


def seeing(
    notices: Mapping[Host, ReclaimNotice] | None = None,
    granted: frozenset[Host] = frozenset(),
    missing_since: float | None = None,
    ahead: Iterable[ReclaimNotice] = (),
) -> JobFacts:
    """The facts beside the job; rank 0 is connected by default."""
    later = {Host(each.subject.name): [each] for each in ahead}
    rank_zero = RankZero(connected=missing_since is None, since=missing_since or 0.0)
    return JobFacts(notices=notices or {}, ahead=later, granted=granted, rank_zero=rank_zero)


def decide(job: SupervisedJob, facts: JobFacts, at: float = 0.0, policy: Policy = POLICY) -> Step:
    """Makes one decision, `at` seconds after `T0`."""
    planned = plan(job, facts, T0 + at, policy)
    return Step(replace(job, decision=planned.decision), planned)


def obeyed(job: SupervisedJob) -> SupervisedJob:
    """The job after the launcher has carried out its order and reported that."""
    order, observed = order_for(job), job.observed
    if order.kind is OrderKind.RUN and order.run > observed.run:
        return observing(job, applied=order.generation, run=order.run, running=True, exit_code=None)
    if order.kind is not OrderKind.RUN and observed.running:
        return observing(job, applied=order.generation, running=False, exit_code=-15)
    return observing(job, applied=order.generation)


def answered(
    job: SupervisedJob, kind: AcknowledgementKind = AcknowledgementKind.SAVED, *, step: int | None = 7, **changes: Any
) -> SupervisedJob:
    """The job after rank 0 has answered the STOP; `changes` are further fields of the answer."""
    stop = job.decision.stop
    assert stop is not None
    worker = Worker("process", job.id, stop.run, Host("n1"), 0)
    answer = Acknowledgement(run=stop.run, generation=stop.generation, kind=kind, step=step, at=T0)
    changed = acknowledge(job, worker, replace(answer, **changes))
    assert changed is not None
    return changed
