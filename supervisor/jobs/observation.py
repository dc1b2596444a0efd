"""Helpers that kinds share to observe jobs. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from servicekit.text import one_line
from supervisor.cluster.annotations import (
    OURS,
    STATUS,
    STOP,
    STOPPED_BY_REQUEST,
    SUSPEND,
    SUSPENDED_BY,
    TIMEOUT,
    opts_in,
)
from supervisor.cluster.objects import Pod, PodPhase
from supervisor.domain.ids import is_name
from supervisor.domain.job import Observed, Phase, RequestKind, Result, SupervisedJob, UserRequest
from supervisor.jobs.kind import JobState

STOPPED = (Phase.STOPPING, Phase.SUSPENDED, Phase.TIMED_OUT, Phase.FINISHED)
"""A run that fails in one of these phases was stopped by the supervisor."""

STATUS_OF: Mapping[Result, str] = {Result.TIMED_OUT: TIMEOUT, Result.TERMINATED: STOPPED_BY_REQUEST}
"""The marks of jobs that the supervisor has ended; a person may take them up again."""

_KILLED = -9
"""The exit code of a launcher whose pod was deleted."""

_MAX_DIGITS = 9
_SOMEBODY = "Somebody"


def is_ours(
    state: JobState[Any], annotations: Iterable[Mapping[str, str]], known: SupervisedJob | None, *, suspended_here: bool
) -> bool:
    """Whether a job has opted in, by its own annotations, those of its templates or those of its pods.

    A job of which only the pods opt in stays supervised while it has no pods, for example when it is suspended.
    """
    if any(opts_in(found) for found in (*annotations, *(pod.annotations for pod in state.pods))):
        return True
    before = known is not None and known.uid == state.job.metadata.uid
    return not state.pods and (before or suspended_here)


def held_by_person(state: JobState[Any], *, suspended: bool) -> bool:
    """Whether a person has suspended the job, and neither the supervisor nor the job's queue."""
    return suspended and state.admission is None and state.job.annotations.get(SUSPENDED_BY) != OURS


def annotation(annotations: Iterable[Mapping[str, str]], name: str) -> str | None:
    """The value of an annotation in the first object that has it."""
    return next((found[name] for found in annotations if name in found), None)


def count(text: str | None) -> int:
    """Parses a number; returns 0 for other text, as a typing error must not stop a job."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if text is not None and is_number else 0


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
