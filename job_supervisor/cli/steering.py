"""Steers jobs and nodes, and with `--wait` follows what happens.

`simulate` predicts a fire drill and starts it, `drain` empties a node, `suspend`, `resume` and `stop` steer a job.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from job_supervisor.cli.backend import Backend, DrillSubject, SeenStatus
from job_supervisor.cli.data_dir import whoami
from job_supervisor.cli.errors import CliError, CliExitCode, CliUsageError, NotNowError, UnknownError, UnreachableError
from job_supervisor.cli.foretold import consequences
from job_supervisor.cli.output import complain, confirm, job_names, show
from job_supervisor.cli.showing import only, read_status
from servicekit.wording import duration
from supervisor.decide.reasons import outcome, remains
from supervisor.domain.ids import JobName
from supervisor.domain.job import AcknowledgementKind, RequestKind
from supervisor.domain.notice import SubjectKind
from supervisor.observability.views import JobView

_POLL_SECONDS = 0.5
_SETTLING_SECONDS = 180.0
"""How long a job may take after the drill: a suspended one has to find capacity and start."""

_LONGEST_REASON = 256
_SETTLED = ("Running", "Finished", "TimedOut")

Say = Callable[[str], None]
PhaseHistory = dict[JobName, list[str]]
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
    say: Say = show if given.output.for_people else complain
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
    """Raises UnknownError for a node without an agent, if the supervisor knows nodes only by their agents."""
    if status.agents is None or subject.kind is not SubjectKind.NODE:
        return
    if all(agent.node != subject.name for agent in status.agents):
        raise UnknownError(f"No agent has the name {subject.name}. `job-supervisor nodes` lists them.")


async def follow(backend: Backend, subject: DrillSubject, before: SeenStatus, output: Say) -> PhaseHistory:
    """Prints what happens to the affected jobs until the drill is over and they have settled.

    Those are also the jobs that were affected in `before`, the status before the drill: a quick controller may have
    removed a host or pod before the first look at what follows. A job that was already waiting then may still wait at
    the end.

    Raises:
        NotNowError: A job has not settled long after the drill, or the supervisor has not answered for as long.
        UnreachableError: As above.
    """
    history: PhaseHistory = {job.job: [] for job in before.concerned(subject.kind, subject.name)}
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
            unsettled = [job for job in followed if not _is_settled(job, phases_before.get(job.job))]
            if over is not None and not unsettled:
                return history
            if over is not None and time.monotonic() > over + _SETTLING_SECONDS:
                raise NotNowError("; ".join(f"{job.job} is still {job.phase}: {job.reason}" for job in unsettled))
        await asyncio.sleep(_POLL_SECONDS)


def _is_settled(job: JobView, before: str | None) -> bool:
    """Whether nothing more is expected of a job whose phase was `before`. One that a person suspends stays so."""
    is_held = job.request is not None and job.phase == "Suspended"
    return is_held or job.phase in (*_SETTLED, before)


def _print_changes(
    status: SeenStatus,
    subject: DrillSubject,
    history: PhaseHistory,
    printed: dict[JobName, str],
    output: Say,
) -> None:
    for job in status.concerned(subject.kind, subject.name):
        history.setdefault(job.job, [])
    for name in history.keys() - {job.job for job in status.jobs}:
        line = f"The supervisor no longer knows {name}."
        if printed.get(name) != line:
            printed[name] = line
            output(line)
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


@dataclass(frozen=True, slots=True)
class SteeringGoal:
    """A verb and its request. A request of None withdraws the present one."""

    verb: str
    request: RequestKind | None

    def is_asked(self, job: JobView) -> bool:
        """Whether the supervisor knows the request."""
        return self.request is (None if job.request is None else job.request.kind)

    def is_reached(self, job: JobView) -> bool:
        match self.request:
            case RequestKind.SUSPEND:
                return self.is_asked(job) and job.phase == "Suspended" and not job.running
            case RequestKind.STOP:
                return job.over
            case None:
                return job.phase == "Running" and job.running

    def consequence(self, job: JobView) -> str:
        saves = "saves a checkpoint, and " if job.running else ""
        match self.request:
            case RequestKind.SUSPEND:
                return f"{job.job} {saves}stays suspended until `job-supervisor resume {job.job}`."
            case RequestKind.STOP:
                return f"{job.job} {saves}ends for good."
            case None:
                return f"{job.job} may run again, and resumes as soon as there are enough hosts."


_GOALS = {
    "suspend": SteeringGoal("suspend", RequestKind.SUSPEND),
    "resume": SteeringGoal("resume", None),
    "stop": SteeringGoal("stop", RequestKind.STOP),
}


async def steer(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    """Runs `suspend`, `resume` and `stop`."""
    goal, say = _GOALS[given.command], show if given.output.for_people else complain
    before = only(await read_status(backend, given), given.job)
    if before.over:
        raise UnknownError(f"{before.job} has ended: {before.reason}")
    if goal.is_asked(before):
        for sentence in _already(goal, before):
            say(sentence)
    else:
        say(goal.consequence(before))
        if goal.request is not None and not given.yes:
            confirm(f"{goal.verb.capitalize()} {before.job}?", f"{before.job} was left alone.")
        await backend.ask(before.job, goal.request, whoami(), _reason_of(given))
    phases = await _follow_job(backend, goal, before, given.timeout, say) if given.wait else []
    if not given.output.for_people:
        value = {"job": before.job, "asked": goal.verb, "phases": phases}
        given.output.value(value, job_names([before.job]))
    return CliExitCode.DONE


def _reason_of(given: argparse.Namespace) -> str:
    """Returns the reason of the user on one line, cut to the length that a supervisor accepts; empty for none."""
    return " ".join(getattr(given, "reason", "").split())[:_LONGEST_REASON]


def _already(goal: SteeringGoal, job: JobView) -> Iterator[str]:
    """Returns why the command requests nothing of a job."""
    if goal.request is not None:
        yield f"{job.job} is {job.phase}: {job.reason}"
        return
    yield f"Nobody has suspended or stopped {job.job}, which is {job.phase}."
    if job.waits_for:
        yield f"It waits for: {job.waits_for}"
    elif not job.running:
        yield from (f"Next: {prospect.what}." for prospect in job.prospects[:1])


async def _follow_job(backend: Backend, goal: SteeringGoal, before: JobView, seconds: float, say: Say) -> list[str]:
    """Prints what happens to the job until the goal is reached; returns the phases that it went through.

    Raises:
        NotNowError: That takes longer, or a run was stopped without a checkpoint.
        UnknownError: The job has ended, or is not known any more.
    """
    started, last, phases = time.monotonic(), "", list[str]()
    while True:
        status = await _answered(backend)
        job = None if status is None else next((each for each in status.jobs if each.job == before.job), None)
        if status is not None and job is None:
            raise UnknownError(f"The supervisor does not know {before.job} any more.")
        if job is not None:
            if not phases or phases[-1] != job.phase:
                phases.append(job.phase)
            line = f"{job.job} is {job.phase}: {job.reason}"
            if line != last:
                say(f"{time.monotonic() - started:6.1f} s  {line}")
                last = line
            if goal.is_reached(job):
                why = _unsaved(before, job) if goal.request is not None else None
                if why is not None:
                    raise NotNowError(f"{job.job} is {job.phase}, but {why}")
                return phases
            if job.over:
                raise UnknownError(f"{job.job} has ended: {job.reason}")
        if time.monotonic() > started + seconds:
            raise NotNowError(
                f"After {seconds:g} s, {last or f'no supervisor has answered about {before.job}'}. The request stands."
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _answered(backend: Backend) -> SeenStatus | None:
    """Reads the status; None while there is no answer, as during a restart of the supervisor."""
    try:
        return await backend.status()
    except (NotNowError, UnreachableError):
        return None


def _unsaved(before: JobView, job: JobView) -> str | None:
    """Explains why a run that was stopped has saved nothing; None if it may have saved, or was not running."""
    answer = job.acknowledgement
    if not before.running:
        return None
    if answer is None or answer.run < before.run:
        return "rank 0 has not answered: its last steps may be lost."
    if answer.run > before.run or answer.kind != AcknowledgementKind.FAILED:
        return None
    return f"rank {answer.rank} {outcome(answer.kind, answer.step, answer.error)}. {remains(answer.resumes_from)}"


async def drain(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    """Runs `drain`: jobs save and leave a node until somebody ends the drain."""
    node, say = await _node(backend, given.node), show if given.output.for_people else complain
    status = await backend.status()
    check_known(node, status)
    for sentence in consequences(node, status, "the drain is ended"):
        say(sentence)
    if not given.yes:
        confirm(f"Drain node {node.name}?", f"Node {node.name} was left alone.")
    await backend.drain(node, given.lead, whoami(), _reason_of(given))
    say(
        f"Node {node.name} is drained within {duration(given.lead)}, and not used again until "
        f"`job-supervisor undrain {node.name}`."
    )
    if given.wait:
        await _follow_node(backend, node, status, given.timeout, say)
    if not given.output.for_people:
        given.output.value({"node": node.name, "lead_seconds": given.lead}, [f"node/{node.name}"])
    return CliExitCode.DONE


async def undrain(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    node = await _node(backend, given.node)
    await backend.undrain(node)
    if given.output.for_people:
        show(f"Node {node.name} is not drained any more.")
    else:
        given.output.value({"node": node.name}, [f"node/{node.name}"])
    return CliExitCode.DONE


async def _node(backend: Backend, text: str) -> DrillSubject:
    subject = await backend.subject(text)
    if subject.kind is not SubjectKind.NODE:
        raise CliUsageError(f"{text} is no node: only nodes can be drained.")
    return subject


async def _follow_node(backend: Backend, node: DrillSubject, before: SeenStatus, seconds: float, say: Say) -> None:
    """Prints what happens to the jobs on the node, also to those that have left since `before`, until none uses it.

    Raises:
        NotNowError: That takes longer, or a job was stopped without a checkpoint.
    """
    started, lines = time.monotonic(), dict[str, str]()
    began = {job.job: job for job in before.concerned(node.kind, node.name)}
    while True:
        status = await _answered(backend)
        waits_for = [f"no supervisor has answered about {node.name}"] if status is None else []
        for job in () if status is None else status.jobs:
            hosts = [] if status is None else status.hosts_on(job, node.kind, node.name)
            line = f"{job.job} is {job.phase}: {job.reason}"
            is_changing = job.phase in ("Shrinking", "Stopping")
            is_used = is_changing or not all(host.excluded for host in hosts)
            if hosts and job.running and not job.over and is_used:
                waits_for.append(line)
            if job.job in began or hosts:
                began.setdefault(job.job, job)
                if lines.get(job.job) != line:
                    lines[job.job] = line
                    say(f"{time.monotonic() - started:6.1f} s  {line}")
        if not waits_for:
            say(f"{time.monotonic() - started:6.1f} s  No supervised job uses node {node.name}.")
            break
        if time.monotonic() > started + seconds:
            raise NotNowError(f"After {seconds:g} s, {'; '.join(waits_for)}. The drain stands.")
        await asyncio.sleep(_POLL_SECONDS)
    for job in () if status is None else status.jobs:
        known = began.get(job.job)
        if known is None or (job.running and job.run <= known.run):
            continue
        why = _unsaved(known, job)
        if why is not None:
            raise NotNowError(f"{job.job} is {job.phase}, but {why} The drain stands.")
