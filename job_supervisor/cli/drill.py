"""`simulate`: predicts what a fire drill will do to jobs, and follows them while it lasts."""

import asyncio
import time
from collections.abc import Callable

from job_supervisor.cli.backend import Backend, Subject
from job_supervisor.cli.errors import NotNowError, UnknownError, UnreachableError
from job_supervisor.cli.status import Status
from job_supervisor.cli.text import duration
from supervisor.domain.ids import JobName
from supervisor.domain.job import OnLoss
from supervisor.domain.notice import SubjectKind
from supervisor.observability.views import HostView, JobView, NoticeView

_POLL_SECONDS = 0.5
_SETTLING_SECONDS = 180.0
"""How long a job may take after the drill: a suspended one has to find capacity and start."""

_SETTLED = ("Running", "Finished", "TimedOut")

Output = Callable[[str], None]
PhaseHistory = dict[str, list[str]]
"""The phases that each job went through, in order."""


def check_known(subject: Subject, status: Status) -> None:
    """Raises UnknownError for a node without an agent, where the supervisor takes a node only by that name."""
    if status.agents is None or subject.kind is not SubjectKind.NODE:
        return
    if all(agent.node != subject.name for agent in status.agents):
        raise UnknownError(f"No agent has the name {subject.name}. `job-supervisor nodes` lists them.")


def consequences(subject: Subject, status: Status, until: str = "the drill is over") -> list[str]:
    """Sentences that tell what a notice about the subject will do `until` its end, shown before it is confirmed."""
    jobs = [job for job in status.concerned(subject.kind, subject.name) if not job.over]
    if not jobs:
        return [f"No supervised job is on {subject.kind} {subject.name}: only a notice is created."]
    return [_consequence(job, until, status.hosts_on(job, subject.kind, subject.name)) for job in jobs]


def _consequence(job: JobView, until: str, affected: list[HostView]) -> str:
    if not job.running:
        return f"{job.job} is {job.phase}, and will not start there until {until}."
    left = len(set(job.workers) - {host.host for host in affected})
    stops = "saves a checkpoint, is suspended, and resumes as a new run when there is capacity"
    if any(host.launcher for host in affected):
        return f"{job.job} {stops}, because its launcher runs there."
    least = -(-job.min_workers // job.worker_multiple) * job.worker_multiple
    if job.on_loss == OnLoss.HOLD:
        least = job.requested_workers
    if left < least:
        share = f"{left} of {len(job.workers)} workers would remain and it needs {least}"
        return f"{job.job} {stops}, because {share}."
    left -= left % job.worker_multiple
    return f"{job.job} continues with {left} of {len(job.workers)} workers until {until}."


async def follow(backend: Backend, subject: Subject, before: Status, output: Output) -> PhaseHistory:
    """Prints what happens to the affected jobs until the drill is over and they have settled.

    A job that was already waiting in `before`, the status before the drill, may still wait at the end.

    Raises:
        NotNowError: A job has not settled long after the drill, or the supervisor has not answered for as long.
        UnreachableError: As above.
    """
    history: PhaseHistory = {}
    phases_before = {job.job: job.phase for job in before.jobs}
    printed: dict[JobName, str] = {}
    started, over, away = time.monotonic(), None, None
    while True:
        try:
            status = await backend.status()
        except (NotNowError, UnreachableError) as error:  # It may be restarted during a drill.
            if away is None:
                away = time.monotonic()
                output(f"{_since(started)}  {error} Asking again; the drill ends by itself.")
            if time.monotonic() > away + _SETTLING_SECONDS:
                raise
        else:
            if away is not None:
                output(f"{_since(started)}  The supervisor answers again.")
            away = None
            _print_changes(status, subject, history, printed, lambda text: output(f"{_since(started)}  {text}"))
            if over is None and not _drills(status, subject):
                over = time.monotonic()
                output(f"{_since(started)}  The drill is over.")
            followed = [job for job in status.jobs if job.job in history]
            unsettled = [job for job in followed if job.phase not in (*_SETTLED, phases_before.get(job.job))]
            if over is not None and not unsettled:
                return history
            if over is not None and time.monotonic() > over + _SETTLING_SECONDS:
                raise NotNowError("; ".join(f"{job.job} is still {job.phase}: {job.reason}" for job in unsettled))
        await asyncio.sleep(_POLL_SECONDS)


def _drills(status: Status, subject: Subject) -> list[NoticeView]:
    wanted = (subject.kind, subject.name)
    active = (notice for notice in status.notices if notice.simulated and notice.active)
    return [notice for notice in active if (notice.kind, notice.subject) == wanted]


def _print_changes(
    status: Status, subject: Subject, history: PhaseHistory, printed: dict[JobName, str], output: Output
) -> None:
    for job in status.concerned(subject.kind, subject.name):
        history.setdefault(job.job, [])
    for job in status.jobs:
        phases = history.get(job.job)
        if phases is None:
            continue
        if not phases or phases[-1] != job.phase:
            phases.append(job.phase)
        line = f"{job.job} is {job.phase}: {job.reason}"
        if printed.get(job.job) != line:
            printed[job.job] = line
            output(line)


def _since(started: float) -> str:
    return f"{time.monotonic() - started:6.1f} s"


def start_message(subject: Subject, lead: float) -> str:
    return (
        f"Started the drill on {subject.kind} {subject.name}. It ends by itself in {duration(lead)}, or with "
        f"`job-supervisor simulate --end {subject.kind}/{subject.name}`."
    )
