"""`simulate`: what a fire drill would do, what becomes of the jobs, and its end before its time."""

import asyncio
import time
from collections.abc import Callable

from supervisor.cli.backend import Backend, Subject
from supervisor.cli.errors import NotNowError, UnreachableError
from supervisor.cli.status import Host, Job, Notice, Status
from supervisor.cli.text import duration
from supervisor.domain.ids import JobName

_POLL_SECONDS = 0.5
_SETTLING_SECONDS = 180.0
"""After the drill: a job that was suspended has to find capacity again, and to start."""

_AT_REST = ("Running", "Finished", "TimedOut")

Print = Callable[[str], None]
PhaseHistory = dict[str, list[str]]
"""The phases that each job went through."""


def consequences(subject: Subject, status: Status) -> list[str]:
    """What the drill will do, in sentences, for whoever has to confirm it."""
    jobs = [job for job in status.concerned(subject.kind, subject.name) if not job.over]
    if not jobs:
        return [f"No supervised job is on {subject.kind} {subject.name}: nothing but the notice will be seen."]
    return [_consequence(job, status.hosts_on(job, subject.kind, subject.name)) for job in jobs]


def _consequence(job: Job, doomed: list[Host]) -> str:
    if not job.running:
        return f"{job.job} is {job.phase}, and starts nothing there until the drill is over."
    left = len(set(job.workers) - {host.host for host in doomed})
    stops = "saves a checkpoint, is suspended, and resumes as another run when there is capacity"
    if any(host.launcher for host in doomed):
        return f"{job.job} {stops}: its launcher is there."
    if left < job.min_workers:
        return f"{job.job} {stops}: {left} of {len(job.workers)} workers would be left, and it needs {job.min_workers}."
    return f"{job.job} goes on with {left} of {len(job.workers)} workers until the drill is over."


async def follow(backend: Backend, subject: Subject, before: Status, say: Print) -> PhaseHistory:
    """Tells what becomes of the jobs until the drill is over and they are at rest again; their phases by job.

    `before` is what was so before the drill: a job that waited then may go on waiting.

    Raises:
        NotNowError: They are not, long after the drill.
    """
    history: PhaseHistory = {}
    at_first = {job.job: job.phase for job in before.jobs}
    told: dict[JobName, str] = {}
    started, over = time.monotonic(), None
    while True:
        status = await _status_or_none(backend)
        if status is not None:
            _tell(status, subject, history, told, lambda text: say(f"{_since(started)}  {text}"))
            if over is None and not _drills(status, subject):
                over = time.monotonic()
                say(f"{_since(started)}  The drill is over.")
            followed = [job for job in status.jobs if job.job in history]
            unsettled = [job for job in followed if job.phase not in (*_AT_REST, at_first.get(job.job))]
            if over is not None and not unsettled:
                return history
            if over is not None and time.monotonic() > over + _SETTLING_SECONDS:
                raise NotNowError("; ".join(f"{job.job} is {job.phase} still: {job.reason}" for job in unsettled))
        await asyncio.sleep(_POLL_SECONDS)


async def _status_or_none(backend: Backend) -> Status | None:
    """None while nobody answers: the supervisor may be restarted under a drill."""
    try:
        return await backend.status()
    except (NotNowError, UnreachableError):
        return None


def _drills(status: Status, subject: Subject) -> list[Notice]:
    about = (subject.kind, subject.name)
    return [each for each in status.notices if each.drill and each.active and (each.kind, each.subject) == about]


def _tell(status: Status, subject: Subject, history: PhaseHistory, told: dict[JobName, str], say: Print) -> None:
    for job in status.concerned(subject.kind, subject.name):
        history.setdefault(job.job, [])
    for job in status.jobs:
        phases = history.get(job.job)
        if phases is None:
            continue
        if not phases or phases[-1] != job.phase:
            phases.append(job.phase)
        line = f"{job.job} is {job.phase}: {job.reason}"
        if told.get(job.job) != line:
            told[job.job] = line
            say(line)


def _since(started: float) -> str:
    return f"{time.monotonic() - started:6.1f} s"


def started(subject: Subject, lead: float) -> str:
    """Says that it has begun, and how it ends."""
    return (
        f"The drill on {subject.kind} {subject.name} has begun. It ends by itself in {duration(lead)}, or with "
        f"`job-supervisor simulate --end {subject.kind}/{subject.name}`."
    )
