"""Decides how messages of launchers and processes change a stored job."""

import sys
from dataclasses import dataclass, replace

from supervisor.decide.plan import first_decision
from supervisor.domain.ids import STANDALONE, Host, JobName, kind_of
from supervisor.domain.job import (
    Acknowledgement,
    AcknowledgementKind,
    Observed,
    Phase,
    RequestKind,
    Result,
    Spec,
    SupervisedJob,
    UserRequest,
)
from supervisor.domain.order import Worker


class NameIsLiveError(Exception):
    """Another launcher is running a job with this name. The user chooses another name."""


class ForeignJobError(Exception):
    """The job belongs to another launcher."""


class UnknownJobError(Exception):
    """The job is unknown or was forgotten. The caller registers it."""


class OlderRevisionError(Exception):
    """A newer report is known. The caller sends the present state."""


class RunIsOverError(Exception):
    """The process belongs to a run that has ended. It stops trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherFacts:
    """The facts that a launcher reports; see `Observed` for the fields."""

    revision: int
    hosts: frozenset[Host]
    run: int
    running: bool
    exit_code: int | None = None
    restarts: int = 0
    applied: int = 0
    ending: bool = False
    result: Result | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A launcher's hello: its identity, the job's spec, and a report. `uid` is used if the job is new."""

    name: JobName
    uid: str
    launcher: str
    instance: str
    spec: Spec
    report: LauncherFacts


def register(known: SupervisedJob | None, registration: Registration, *, live: bool, now: float) -> SupervisedJob:
    """Returns the job after a hello; `live`: its present launcher is connected, or was a moment ago.

    Raises:
        NameIsLiveError: Another launcher process runs a job of this name, or the unfinished job belongs to another
            launcher: a token must not take a job over while its launcher is disconnected.
    """
    sender = (registration.launcher, registration.instance)
    if known is not None and (known.observed.launcher, known.observed.instance) == sender:
        job = replace(known, spec=registration.spec)
        fresh = registration.report.revision >= known.observed.revision
        return replace(job, observed=_observed(job.observed, registration.report)) if fresh else job
    if known is not None and not known.over and (live or known.observed.launcher != registration.launcher):
        raise NameIsLiveError(f"a job named {registration.name} is running")
    # A suspension outlives its launcher, which a service manager may start again; a request to end it does not.
    request = None if known is None or known.over else known.observed.request
    if request is not None and request.kind is not RequestKind.SUSPEND:
        request = None
    blank = Observed(launcher=registration.launcher, instance=registration.instance, registered_at=now, request=request)
    observed = _observed(blank, registration.report)
    return SupervisedJob(
        name=registration.name,
        uid=registration.uid,
        spec=registration.spec,
        observed=observed,
        decision=first_decision(registration.spec, observed, now),
    )


def observe(known: SupervisedJob | None, launcher: str, instance: str, report: LauncherFacts) -> SupervisedJob:
    """Returns the job after a report of its launcher.

    Raises:
        UnknownJobError: The job must be registered first.
        ForeignJobError: The job is another launcher's, or another process of the same launcher has taken over.
        OlderRevisionError: A newer report is stored.
    """
    if known is None:
        raise UnknownJobError("no such job: register it")
    if (known.observed.launcher, known.observed.instance) != (launcher, instance):
        raise ForeignJobError(f"{known.name} is another launcher's job")
    if report.revision < known.observed.revision:
        raise OlderRevisionError(f"revision {known.observed.revision} is known")
    if report.revision == known.observed.revision:
        return known
    return replace(known, observed=_observed(known.observed, report))


def admit(known: SupervisedJob | None, uid: str, run: int) -> SupervisedJob:
    """Returns the job of a process of `run`, if the process may connect.

    Raises:
        UnknownJobError: The job is unknown, or is another one of the same name.
        RunIsOverError: A later run has started, or the job has ended.
    """
    if known is None or known.uid != uid:
        raise UnknownJobError("no such job")
    if run < known.observed.run or known.over:
        raise RunIsOverError(f"run {run} of {known.name} is over")
    return known


def run_of(known: SupervisedJob | None, uid: str, run: int | None) -> int:
    """Returns the run of a process whose token names none. `run` is our earlier answer, None at its first hello.

    A first hello belongs to the running run. Between two runs it is refused: the process may be an early one of the
    next run, and would get the STOP of the last one.

    Raises:
        UnknownJobError: The job or run is unknown, or no run is running.
        RunIsOverError: The job has ended.
    """
    job = admit(known, uid, sys.maxsize)
    if run is None and not job.observed.running:
        raise UnknownJobError("no run of the job is running")
    if run is not None and run > job.observed.run:
        raise UnknownJobError(f"no run {run} is known")
    return job.observed.run if run is None else run


def acknowledge(
    known: SupervisedJob | None, worker: Worker, answer: Acknowledgement, *, collective: bool = False
) -> SupervisedJob | None:
    """Returns the job after an acknowledgement; `collective`: the sender's save needs all ranks.

    Rank 0's answer to a STOP changes it, and that another rank could not save if the job needs its part.
    """
    if known is None or not is_answer(known, worker.run, answer):
        return known
    before = known.observed.acknowledgement
    stop = known.decision.stop
    if before is not None and stop is not None and (before.run != stop.run or before.generation < stop.generation):
        before = None  # it answers an earlier STOP
    is_from_failed = before is not None and before.kind is AcknowledgementKind.FAILED and before.rank == answer.rank
    needs_all = collective and known.decision.agreed_stop is not None
    is_needed = worker.rank is not None and needs_all and answer.kind is AcknowledgementKind.FAILED
    if worker.rank != 0 and not is_from_failed and not is_needed:
        return known
    after = answer if before is None else _after(before, answer)
    return known if after is before else replace(known, observed=replace(known.observed, acknowledgement=after))


def is_answer(job: SupervisedJob, run: int, answer: Acknowledgement) -> bool:
    """Whether an acknowledgement of a process of `run` answers the present STOP, unless with an earlier checkpoint."""
    stop, agreed = job.decision.stop, job.decision.agreed_stop
    # A lower generation answers an earlier directive; a higher one answers a directive that was never sent.
    if stop is None or run != stop.run or not stop.generation <= answer.generation <= job.decision.generation:
        return False
    # Ranks that do not ask after every step stop at the next one at which they ask.
    at = None if agreed is None else agreed.step
    is_of_step = answer.kind in (AcknowledgementKind.SAVED, AcknowledgementKind.KEPT)
    return not is_of_step or at is None or answer.step is None or answer.step >= at


def _after(before: Acknowledgement, later: Acknowledgement) -> Acknowledgement:
    """Chooses between two answers to one STOP.

    A saved checkpoint counts more than a kept state, and that more than an exit. A failure is taken back only by the
    rank that has failed.
    """
    kinds = AcknowledgementKind
    match before.kind, later.kind:
        case (kinds.LEFT, kinds.SAVED | kinds.KEPT | kinds.FAILED):
            return later
        case (kinds.KEPT, kinds.SAVED):
            return later
        case (kinds.SAVED | kinds.KEPT, kinds.FAILED) if later.rank != before.rank:
            return later
        case (kinds.FAILED, kinds.SAVED | kinds.KEPT) if later.rank == before.rank:
            return later
        case (kinds.FAILED, kinds.FAILED | kinds.LEFT) if later.rank == before.rank and not before.has_left:
            is_over = later.kind is kinds.LEFT or later.has_left
            return replace(before, has_left=True, at=later.at) if is_over else before
    return before


def _observed(before: Observed, report: LauncherFacts) -> Observed:
    return replace(
        before,
        revision=report.revision,
        hosts=report.hosts,
        run=report.run,
        running=report.running,
        exit_code=report.exit_code,
        restarts=report.restarts,
        applied=report.applied,
        ending=report.ending,
        result=report.result,
    )


_ENDED = (Phase.TIMED_OUT, Phase.FINISHED)


class JobIsOverError(Exception):
    """The job has ended, so it takes no requests."""


class JobEndsError(Exception):
    """The job is being ended, so nobody can only suspend it."""


class ClusterJobError(Exception):
    """The job belongs to a cluster's controller. Requests about it are annotations of its object."""


def with_request(known: SupervisedJob | None, request: UserRequest | None) -> SupervisedJob:
    """Returns the job with a new request; None withdraws the present one. A repeated request changes nothing.

    Raises:
        UnknownJobError: There is no such job.
        ClusterJobError: See there.
        JobIsOverError: See there.
        JobEndsError: See there.
    """
    if known is None:
        raise UnknownJobError("no such job")
    if kind_of(known.name) != STANDALONE:
        raise ClusterJobError(f"{known.name} is steered by annotations of its object on the cluster")
    if known.over or known.decision.phase in _ENDED:
        raise JobIsOverError(f"{known.name} has ended")
    before = known.observed.request
    if before is None or request is None:
        return replace(known, observed=replace(known.observed, request=request))
    if before.kind is RequestKind.STOP and request.kind is RequestKind.SUSPEND:
        raise JobEndsError(f"{known.name} is being ended at the request of {before.by}; to resume it takes that back")
    since = before.at if before.kind is request.kind else request.at
    return replace(known, observed=replace(known.observed, request=replace(request, at=since)))
