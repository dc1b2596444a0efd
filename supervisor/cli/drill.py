"""`simulate`: what a fire drill would do, what becomes of the jobs, and its end before its time."""

import asyncio
import time
from collections.abc import Callable

from supervisor.cli.errors import NotNowError, UnreachableError
from supervisor.cli.place import Place, Subject
from supervisor.cli.text import duration
from supervisor.cli.view import Host, Job, Notice, View
from supervisor.domain.ids import JobName

_LOOK_SECONDS = 0.5
_SETTLING_SECONDS = 180.0
"""After the drill: a job that was suspended has to find capacity again, and to start."""

_AT_REST = ("Running", "Finished", "TimedOut")

Say = Callable[[str], None]
Courses = dict[str, list[str]]
"""The phases that each job went through."""


def consequences(subject: Subject, view: View) -> list[str]:
    """What the drill will do, in sentences, for whoever has to confirm it."""
    jobs = [job for job in view.concerned(subject.kind, subject.name) if not job.over]
    if not jobs:
        return [f"No supervised job is on {subject.kind} {subject.name}: nothing but the notice will be seen."]
    return [_consequence(job, view.hosts_on(job, subject.kind, subject.name)) for job in jobs]


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


async def follow(place: Place, subject: Subject, before: View, say: Say) -> Courses:
    """Tells what becomes of the jobs until the drill is over and they are at rest again; their phases by job.

    `before` is what was so before the drill: a job that waited then may go on waiting.

    Raises:
        NotNowError: They are not, long after the drill.
    """
    courses: Courses = {}
    at_first = {job.job: job.phase for job in before.jobs}
    told: dict[JobName, str] = {}
    begun, over = time.monotonic(), None
    while True:
        view = await _look(place)
        if view is not None:
            _tell(view, subject, courses, told, lambda text: say(f"{_since(begun)}  {text}"))
            if over is None and not _drills(view, subject):
                over = time.monotonic()
                say(f"{_since(begun)}  The drill is over.")
            followed = [job for job in view.jobs if job.job in courses]
            restless = [job for job in followed if job.phase not in (*_AT_REST, at_first.get(job.job))]
            if over is not None and not restless:
                return courses
            if over is not None and time.monotonic() > over + _SETTLING_SECONDS:
                raise NotNowError("; ".join(f"{job.job} is {job.phase} still: {job.reason}" for job in restless))
        await asyncio.sleep(_LOOK_SECONDS)


async def _look(place: Place) -> View | None:
    """None while nobody answers: the supervisor may be restarted under a drill."""
    try:
        return await place.look()
    except (NotNowError, UnreachableError):
        return None


def _drills(view: View, subject: Subject) -> list[Notice]:
    about = (subject.kind, subject.name)
    return [each for each in view.notices if each.drill and each.active and (each.kind, each.subject) == about]


def _tell(view: View, subject: Subject, courses: Courses, told: dict[JobName, str], say: Say) -> None:
    for job in view.concerned(subject.kind, subject.name):
        courses.setdefault(job.job, [])
    for job in view.jobs:
        phases = courses.get(job.job)
        if phases is None:
            continue
        if not phases or phases[-1] != job.phase:
            phases.append(job.phase)
        line = f"{job.job} is {job.phase}: {job.reason}"
        if told.get(job.job) != line:
            told[job.job] = line
            say(line)


def _since(begun: float) -> str:
    return f"{time.monotonic() - begun:6.1f} s"


def begun(subject: Subject, lead: float) -> str:
    """Says that it has begun, and how it ends."""
    return (
        f"The drill on {subject.kind} {subject.name} has begun. It ends by itself in {duration(lead)}, or with "
        f"`job-supervisor simulate --end {subject.kind}/{subject.name}`."
    )
