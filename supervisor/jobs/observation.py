"""Helpers that kinds share to observe jobs. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from servicekit.bounds import MAX_HOSTS, MAX_LISTED_WORKERS, MAX_ROLES, whole
from servicekit.kubernetes.objects import Metadata
from servicekit.text import one_line
from supervisor.cluster.annotations import (
    OURS,
    REQUESTED,
    STATUS,
    STOP,
    STOPPED_BY_REQUEST,
    SUSPEND,
    SUSPENDED_BY,
    TIMEOUT,
    opts_in,
    opts_out,
)
from supervisor.cluster.objects import Pod, PodPhase
from supervisor.decide.reasons import waiting
from supervisor.domain.ids import MAX_NAME, Host, is_name
from supervisor.domain.job import (
    Capability,
    Decision,
    Framework,
    Observed,
    Phase,
    RequestKind,
    Result,
    Spec,
    SupervisedJob,
    UserRequest,
)
from supervisor.jobs.kind import JobState

STOPPED = (Phase.STOPPING, Phase.SUSPENDED, Phase.TIMED_OUT, Phase.FINISHED)
"""A run that fails in one of these phases was stopped by the supervisor."""

STATUS_OF: Mapping[Result, str] = {Result.TIMED_OUT: TIMEOUT, Result.TERMINATED: STOPPED_BY_REQUEST}
"""The marks of jobs that the supervisor has ended; a person may take them up again."""

_KILLED = -9
"""The exit code of a launcher whose pod was deleted."""

_REFUSED = frozenset({Capability.MAKES_HOSTS, Capability.STARTS_RUNS})
"""Its controller makes its hosts and starts it, so the supervisor has nothing to do for it."""

_NAME_WITH_ROOM = 150
"""A job's name of this length leaves room for a role of 63 characters and two numbers."""

_SOMEBODY = "Somebody"


def is_ours(
    state: JobState[Any], annotations: Iterable[Mapping[str, str]], known: SupervisedJob | None, *, suspended_here: bool
) -> bool:
    """Whether a job has opted in, by its own annotations, those of its templates or those of its pods.

    A job of which only the pods opt in stays supervised while it has no pods, for example when it is suspended. The
    job's own annotation counts most: a job that opts out is let go, once it has been resumed if the supervisor has
    suspended it.
    """
    if opts_out(state.job.annotations):
        return suspended_here and not state.pods
    if any(opts_in(found) for found in (*annotations, *(pod.annotations for pod in state.pods))):
        return True
    before = known is not None and known.uid == state.job.metadata.uid and not known.spec.refused
    return not state.pods and (before or suspended_here)


def held_by_person(state: JobState[Any], *, suspended: bool) -> bool:
    """Whether a person has suspended the job, and neither the supervisor nor the job's queue."""
    return suspended and state.admission is None and state.job.annotations.get(SUSPENDED_BY) != OURS


def in_its_queue(job: SupervisedJob, state: JobState[Any]) -> SupervisedJob:
    """A job as it is stored first, where a queue has suspended it: it begins in the phase Queued.

    As one that is suspended here, it would be released and registered again when the queue starts it before the first
    plan was made, as for one that a person has resumed. That came with most starts.
    """
    suspended_by_queue = state.job.suspended and state.job.annotations.get(SUSPENDED_BY) != OURS
    if state.admission is None or not suspended_by_queue or job.decision.phase is not Phase.SUSPENDED:
        return job
    reason = job.observed.queue or waiting(job.spec)
    return replace(job, decision=replace(job.decision, phase=Phase.QUEUED, reason=reason, waiting_since=None))


def annotation(annotations: Iterable[Mapping[str, str]], name: str) -> str | None:
    """The value of an annotation in the first object that has it."""
    return next((found[name] for found in annotations if name in found), None)


def count(text: str | None) -> int:
    """Parses a number of workers; returns 0 for other text, as a typing error must not stop a job."""
    return whole(text, MAX_LISTED_WORKERS) or 0


def requested_workers(annotations: Mapping[str, str], present: int, known: SupervisedJob | None = None) -> int:
    """How many workers a job asked for before the supervisor resumed it with fewer: what it has noted on the job.

    Anybody may write the annotation. A job that is known has asked for that many before, else somebody else wrote it.
    """
    noted = whole(annotations.get(REQUESTED), MAX_HOSTS) or 0
    is_ours = known is None or noted <= known.spec.requested_workers
    return noted if is_ours and noted > present else present


def refusal(sizes: Collection[int]) -> str:
    """Why a job with these numbers of pods by role is not supervised; empty for one within the bounds."""
    if len(sizes) > MAX_ROLES:
        return f"The job is not supervised: it has {len(sizes):,} roles, more than {MAX_ROLES:,}."
    if sum(sizes) > MAX_HOSTS:
        return f"The job is not supervised: it asks for more than {MAX_HOSTS:,} workers."
    return ""


def unnamed(name: str, hosts: Iterable[Host]) -> str:
    """Why a job of this name, whose last hosts are these, is not supervised; empty if pods can be called so."""
    if len(name) > _NAME_WITH_ROOM and any(len(host) > MAX_NAME for host in hosts):
        return f"The job is not supervised: the names of its pods would have more than {MAX_NAME} characters."
    return ""


def of_object(known: SupervisedJob | None, metadata: Metadata) -> SupervisedJob | None:
    """The stored job, if it is that of this object, and not that of an earlier one of the same name."""
    return known if known is not None and known.uid == metadata.uid else None


def refused(
    state: JobState[Any], known: SupervisedJob | None, spec: Spec, result: Result | None, now: float
) -> SupervisedJob | None:
    """The job as it is stored so that people see why it is not supervised; None for one that was, which is let go."""
    if known is not None and (known.over or not known.spec.refused):
        return known if known.over else None
    if known is not None or result is not None:
        return None if known is None else replace(known, observed=replace(known.observed, result=result))
    return SupervisedJob(
        name=state.name,
        uid=state.job.metadata.uid,
        spec=spec,
        observed=Observed(launcher=state.job.metadata.name, instance="", registered_at=now),
        decision=Decision(generation=1, phase=Phase.WAITING, reason=" ".join(spec.ignored), waiting_since=now),
    )


def refused_spec(framework: Framework, why: str) -> Spec:
    """The spec of a job of unknown size."""
    return Spec(
        framework=framework,
        min_workers=1,
        max_workers=1,
        requested_workers=1,
        capabilities=_REFUSED,
        ignored=(why,),
        refused=True,
    )


def marked_result(annotations: Mapping[str, str]) -> Result | None:
    """The result of a job that the supervisor has ended; None if it has not."""
    return next((result for result, status in STATUS_OF.items() if annotations.get(STATUS) == status), None)


def with_request(job: SupervisedJob, annotations: Mapping[str, str], now: float) -> SupervisedJob:
    """The job with what a person asks of it by an annotation of its object; to end it counts more."""
    asked = _asked(RequestKind.STOP, annotations.get(STOP)) or _asked(RequestKind.SUSPEND, annotations.get(SUSPEND))
    if asked is None:
        return replace(job, observed=replace(job.observed, request=None))
    kind, by, reason = asked
    known = job.observed.request
    at = known.at if known is not None and known.kind is kind else now
    return replace(job, observed=replace(job.observed, request=UserRequest(kind=kind, by=by, reason=reason, at=at)))


def _asked(kind: RequestKind, text: str | None) -> tuple[RequestKind, str, str] | None:
    """Reads `WHO: REASON`; `false` asks for nothing, and without a usable name it was somebody."""
    if text is None or text == "false":
        return None
    who, colon, why = (part.strip() for part in one_line(text).partition(":"))
    if text == "true" or not is_name(who):
        return kind, _SOMEBODY, why
    return (kind, who, why) if colon else (kind, _SOMEBODY, who)


def observed_launcher(launcher: Pod | None, known: SupervisedJob | None, before: Observed) -> Observed:
    """The facts about the run that the launcher's pod shows.

    A new launcher is a new run. The number of a run that was ordered but never started is not reused.
    """
    if launcher is None:
        return replace(before, running=False, exit_code=_KILLED if before.running else before.exit_code)
    running = launcher.phase is PodPhase.RUNNING and launcher.exit_code is None
    return observed_run(launcher.metadata.uid, known, replace(before, running=running, exit_code=_exit_code(launcher)))


def observed_run(run_id: str, known: SupervisedJob | None, observed: Observed) -> Observed:
    """The facts with the number of the run that has this id; a new id is a new run."""
    if run_id == observed.instance:
        return observed
    run = max(observed.run + 1, 0 if known is None else known.decision.run)
    return replace(observed, run=run, instance=run_id)


def missing_launcher(observed: Observed, now: float, *, is_missing: bool) -> Observed:
    """Records since when the launcher is missing although its controller believes that it exists."""
    if not is_missing:
        return replace(observed, launcher_lost_since=None)
    return observed if observed.launcher_lost_since is not None else replace(observed, launcher_lost_since=now)


def _exit_code(launcher: Pod) -> int | None:
    if launcher.exit_code is not None or not launcher.over:
        return launcher.exit_code
    return int(launcher.phase is PodPhase.FAILED)
