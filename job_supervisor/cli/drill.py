"""`simulate`: predicts what a fire drill will do to jobs, starts it, and follows them while it lasts."""

import argparse
import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from job_supervisor.cli.backend import Backend, DrillSubject, SeenStatus
from job_supervisor.cli.data_dir import whoami
from job_supervisor.cli.errors import CliError, CliExitCode, CliUsageError, NotNowError, UnknownError, UnreachableError
from job_supervisor.cli.output import complain, confirm, duration, show
from supervisor.domain.ids import JobName
from supervisor.domain.job import OnLoss
from supervisor.domain.notice import SubjectKind

_POLL_SECONDS = 0.5
_SETTLING_SECONDS = 180.0
"""How long a job may take after the drill: a suspended one has to find capacity and start."""

_SETTLED = ("Running", "Finished", "TimedOut")

PhaseHistory = dict[str, list[str]]
"""The phases that each job went through, in order."""


async def simulate(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    subject = None if given.subject is None else await backend.subject(given.subject)
    if given.end:
        ended = await backend.end(subject)
        if given.output.for_people:
            show(*([_ended(each) for each in ended] or ["There was no drill."]))
        else:
            given.output.value({"ended": ended}, [f"{each.kind}/{each.name}" for each in ended])
        return CliExitCode.DONE
    if subject is None:
        raise CliUsageError("Name the node or pod of the drill.")
    say: Callable[[str], None] = show if given.output.for_people else complain
    before = await backend.status()
    check_known(subject, before)
    for sentence in consequences(subject, before):
        say(sentence)
    if not given.yes:
        confirm("All of this will really happen. Start the drill?", "The drill was not started.")
    await backend.begin(subject, given.lead, whoami())
    name = f"{subject.kind}/{subject.name}"
    say(
        f"Started the drill on {subject.kind} {subject.name}. It ends by itself in {duration(given.lead)}, or with "
        f"`job-supervisor simulate --end {name}`."
    )
    history: PhaseHistory = {}
    try:
        if given.wait:
            history = await follow(backend, subject, before, say)
    except BaseException:
        # An interrupted command, or one that cannot follow the drill any more, must not leave it running.
        with suppress(CliError):
            for each in await backend.end(subject):
                complain(_ended(each))
        raise
    if not given.output.for_people:
        given.output.value({"subject": subject, "lead_seconds": given.lead, "phases": history}, [name])
    return CliExitCode.DONE


def _ended(subject: DrillSubject) -> str:
    return f"Ended the drill on {subject.kind} {subject.name}."


def check_known(subject: DrillSubject, status: SeenStatus) -> None:
    """Raises UnknownError for a node without an agent, where the supervisor takes a node only by that name."""
    if status.agents is None or subject.kind is not SubjectKind.NODE:
        return
    if all(agent.node != subject.name for agent in status.agents):
        raise UnknownError(f"No agent has the name {subject.name}. `job-supervisor nodes` lists them.")


def consequences(subject: DrillSubject, status: SeenStatus, until: str = "the drill is over") -> list[str]:
    """Sentences that tell what a notice about the subject will do `until` its end, shown before it is confirmed."""
    sentences = []
    stops = "saves a checkpoint, is suspended, and resumes as a new run when there is capacity"
    for job in status.concerned(subject.kind, subject.name):
        if job.over:
            continue
        affected = status.hosts_on(job, subject.kind, subject.name)
        left = len(set(job.workers) - {host.host for host in affected})
        least = -(-job.min_workers // job.worker_multiple) * job.worker_multiple
        if job.on_loss == OnLoss.HOLD:
            least = job.requested_workers
        if not job.running:
            sentences.append(f"{job.job} is {job.phase}, and will not start there until {until}.")
        elif any(host.launcher for host in affected):
            sentences.append(f"{job.job} {stops}, because its launcher runs there.")
        elif left < least:
            share = f"{left} of {len(job.workers)} workers would remain and it needs {least}"
            sentences.append(f"{job.job} {stops}, because {share}.")
        else:
            left -= left % job.worker_multiple
            sentences.append(f"{job.job} continues with {left} of {len(job.workers)} workers until {until}.")
    return sentences or [f"No supervised job is on {subject.kind} {subject.name}: only a notice is created."]


async def follow(
    backend: Backend, subject: DrillSubject, before: SeenStatus, output: Callable[[str], None]
) -> PhaseHistory:
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

    def say(text: str) -> None:
        output(f"{time.monotonic() - started:6.1f} s  {text}")

    while True:
        try:
            status = await backend.status()
        except (NotNowError, UnreachableError) as error:  # It may be restarted during a drill.
            if away is None:
                away = time.monotonic()
                say(f"{error} Asking again; the drill ends by itself.")
            if time.monotonic() > away + _SETTLING_SECONDS:
                raise
        else:
            if away is not None:
                say("The supervisor answers again.")
            away = None
            _print_changes(status, subject, history, printed, say)
            drills = (each for each in status.notices if each.simulated and each.active)
            if over is None and all((each.kind, each.subject) != (subject.kind, subject.name) for each in drills):
                over = time.monotonic()
                say("The drill is over.")
            followed = [job for job in status.jobs if job.job in history]
            unsettled = [job for job in followed if job.phase not in (*_SETTLED, phases_before.get(job.job))]
            if over is not None and not unsettled:
                return history
            if over is not None and time.monotonic() > over + _SETTLING_SECONDS:
                raise NotNowError("; ".join(f"{job.job} is still {job.phase}: {job.reason}" for job in unsettled))
        await asyncio.sleep(_POLL_SECONDS)


def _print_changes(
    status: SeenStatus,
    subject: DrillSubject,
    history: PhaseHistory,
    printed: dict[JobName, str],
    output: Callable[[str], None],
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
