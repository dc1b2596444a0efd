"""`suspend`, `resume` and `stop`: asks something of a job, and with `--wait` follows the job until it is done."""

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from job_supervisor.cli.backend import Backend
from job_supervisor.cli.confirmation import confirm
from job_supervisor.cli.data_dir import whoami
from job_supervisor.cli.errors import ExitCode, NotNowError, UnknownError, UnreachableError
from job_supervisor.cli.output import complain, job_names, show
from job_supervisor.cli.showing import only, read_status
from supervisor.decide.reasons import outcome, remains
from supervisor.domain.ids import JobName
from supervisor.domain.job import AcknowledgementKind, RequestKind
from supervisor.observability.views import JobView

_POLL_SECONDS = 0.5
_LONGEST_REASON = 256

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Goal:
    """What a verb asks for; None is nothing any more."""

    verb: str
    request: RequestKind | None

    def is_asked(self, job: JobView) -> bool:
        """Whether the supervisor knows what is asked."""
        return self.request is (None if job.request is None else job.request.kind)

    def is_reached(self, job: JobView) -> bool:
        match self.request:
            case RequestKind.SUSPEND:
                return self.is_asked(job) and job.phase == "Suspended" and not job.running
            case RequestKind.STOP:
                return job.over
            case None:
                return job.phase == "Running" and job.running


_GOALS = {
    "suspend": _Goal("suspend", RequestKind.SUSPEND),
    "resume": _Goal("resume", None),
    "stop": _Goal("stop", RequestKind.STOP),
}


async def steer(backend: Backend, given: argparse.Namespace) -> ExitCode:
    goal, say = _GOALS[given.command], show if given.output.for_people else complain
    before = only(await read_status(backend, given), given.job)
    if before.over:
        raise UnknownError(f"{before.job} has ended: {before.reason}")
    is_asked = goal.is_asked(before)
    for sentence in _already(goal, before) if is_asked else _consequences(goal, before):
        say(sentence)
    if not is_asked:
        if goal.request is not None and not given.yes:
            confirm(f"{goal.verb.capitalize()} {before.job}?", f"{before.job} was left alone.")
        await backend.ask(before.job, goal.request, whoami(), reason_of(given))
    phases = await _follow(backend, goal, before, given.timeout, say) if given.wait else []
    if not given.output.for_people:
        value = {"job": before.job, "asked": goal.verb, "phases": phases}
        given.output.value(value, job_names([before.job]))
    return ExitCode.DONE


def reason_of(given: argparse.Namespace) -> str:
    """The reason that a person has given, on one line and cut to what a supervisor takes; empty for none."""
    return " ".join(getattr(given, "reason", "").split())[:_LONGEST_REASON]


def _already(goal: _Goal, job: JobView) -> Iterator[str]:
    """Tells why nothing is asked of a job."""
    if goal.request is not None:
        yield f"{job.job} is {job.phase}: {job.reason}"
        return
    yield f"Nobody has suspended or stopped {job.job}, which is {job.phase}."
    if job.waits_for:
        yield f"It waits for: {job.waits_for}"
    elif not job.running:
        yield from (f"Next: {prospect.what}." for prospect in job.prospects[:1])


def _consequences(goal: _Goal, job: JobView) -> Iterator[str]:
    saves = "saves a checkpoint, and " if job.running else ""
    match goal.request:
        case RequestKind.SUSPEND:
            yield f"{job.job} {saves}stays suspended until `job-supervisor resume {job.job}`."
        case RequestKind.STOP:
            yield f"{job.job} {saves}ends for good."
        case None:
            yield f"{job.job} may run again, and resumes as soon as there are enough hosts."


async def _follow(backend: Backend, goal: _Goal, before: JobView, seconds: float, say: Say) -> list[str]:
    """Prints what happens to the job until the goal is reached; returns the phases that it went through.

    Raises:
        NotNowError: That takes longer, or a run was stopped without a checkpoint.
        UnknownError: The job has ended, or is not known any more.
    """
    started, said, phases = time.monotonic(), "", list[str]()
    while True:
        job = await _look(backend, before.job)
        if job is not None:
            if not phases or phases[-1] != job.phase:
                phases.append(job.phase)
            line = f"{job.job} is {job.phase}: {job.reason}"
            if line != said:
                say(f"{time.monotonic() - started:6.1f} s  {line}")
                said = line
            if goal.is_reached(job):
                _check_saved(goal, before, job)
                return phases
            if job.over:
                raise UnknownError(f"{job.job} has ended: {job.reason}")
        if time.monotonic() > started + seconds:
            raise NotNowError(
                f"After {seconds:g} s, {said or f'no supervisor has answered about {before.job}'}. The request stands."
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _look(backend: Backend, name: JobName) -> JobView | None:
    """The job; None while there is no answer, as during a restart of the supervisor."""
    try:
        found = await backend.status()
    except (NotNowError, UnreachableError):
        return None
    job = next((each for each in found.jobs if each.job == name), None)
    if job is None:
        raise UnknownError(f"The supervisor does not know {name} any more.")
    return job


def _check_saved(goal: _Goal, before: JobView, job: JobView) -> None:
    """Raises if the run was stopped and nothing was saved."""
    why = unsaved(before, job) if goal.request is not None else None
    if why is not None:
        raise NotNowError(f"{job.job} is {job.phase}, but {why}")


def unsaved(before: JobView, job: JobView) -> str | None:
    """Why a run that was stopped has saved nothing, as a sentence; None if it may have saved, or was not running."""
    answer = job.acknowledgement
    if not before.running:
        return None
    if answer is None or answer.run < before.run:
        return "rank 0 has not answered: its last steps may be lost."
    if answer.run > before.run or answer.kind != AcknowledgementKind.FAILED:
        return None
    return f"rank {answer.rank} {outcome(answer.kind, answer.step, answer.error)}. {remains(answer.resumes_from)}"
