"""Helpers that kinds share to observe jobs. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from supervisor.cluster.annotations import opts_in
from supervisor.cluster.objects import Pod, PodPhase
from supervisor.domain.job import Observed, Phase, SupervisedJob
from supervisor.jobs.kind import JobState

STOPPED = (Phase.STOPPING, Phase.SUSPENDED, Phase.TIMED_OUT)
"""A run that fails in one of these phases was stopped by the supervisor."""

_KILLED = -9
"""The exit code of a launcher whose pod was deleted."""

_MAX_DIGITS = 9


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


def annotation(annotations: Iterable[Mapping[str, str]], name: str) -> str | None:
    """The value of an annotation in the first object that has it."""
    return next((found[name] for found in annotations if name in found), None)


def count(text: str | None) -> int:
    """Parses a number; returns 0 for other text, as a typing error must not stop a job."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if text is not None and is_number else 0


def observed_launcher(launcher: Pod | None, known: SupervisedJob | None, before: Observed) -> Observed:
    """The facts about the run that the launcher's pod shows.

    A new launcher is a new run. The number of a run that was ordered but never started is not reused.
    """
    if launcher is None:
        return replace(before, running=False, exit_code=_KILLED if before.running else before.exit_code)
    is_new = launcher.metadata.uid != before.instance
    run = max(before.run + 1, 0 if known is None else known.decision.run) if is_new else before.run
    return replace(
        before,
        running=launcher.phase is PodPhase.RUNNING and launcher.exit_code is None,
        exit_code=_exit_code(launcher),
        run=run,
        instance=launcher.metadata.uid,
    )


def missing_launcher(observed: Observed, now: float, *, is_missing: bool) -> Observed:
    """Records since when the launcher is missing although its controller believes that it exists."""
    if not is_missing:
        return replace(observed, launcher_lost_since=None)
    return observed if observed.launcher_lost_since is not None else replace(observed, launcher_lost_since=now)


def _exit_code(launcher: Pod) -> int | None:
    if launcher.exit_code is not None or not launcher.over:
        return launcher.exit_code
    return int(launcher.phase is PodPhase.FAILED)
