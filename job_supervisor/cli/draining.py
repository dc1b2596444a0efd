"""`drain` and `undrain`: has the jobs leave a node, saved first, until somebody ends that."""

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator, Mapping

from job_supervisor.cli.backend import Backend, Subject
from job_supervisor.cli.confirmation import confirm
from job_supervisor.cli.data_dir import whoami
from job_supervisor.cli.drill import check_known, consequences
from job_supervisor.cli.errors import ExitCode, NotNowError, UnreachableError, UsageError
from job_supervisor.cli.output import complain, show
from job_supervisor.cli.status import Status
from job_supervisor.cli.steering import reason_of, unsaved
from job_supervisor.cli.text import duration
from supervisor.domain.notice import SubjectKind
from supervisor.observability.views import JobView

_POLL_SECONDS = 0.5

Say = Callable[[str], None]


async def drain(backend: Backend, given: argparse.Namespace) -> ExitCode:
    node, say = await _node(backend, given.node), show if given.output.for_people else complain
    status = await backend.status()
    check_known(node, status)
    for sentence in consequences(node, status, "the drain is ended"):
        say(sentence)
    if not given.yes:
        confirm(f"Drain node {node.name}?", f"Node {node.name} was left alone.")
    await backend.drain(node, given.lead, whoami(), reason_of(given))
    say(
        f"Node {node.name} is drained within {duration(given.lead)}, and not used again until "
        f"`job-supervisor undrain {node.name}`."
    )
    if given.wait:
        await _follow(backend, node, given.timeout, say)
    if not given.output.for_people:
        given.output.value({"node": node.name, "lead_seconds": given.lead}, [f"node/{node.name}"])
    return ExitCode.DONE


async def undrain(backend: Backend, given: argparse.Namespace) -> ExitCode:
    node = await _node(backend, given.node)
    await backend.undrain(node)
    if given.output.for_people:
        show(f"Node {node.name} is not drained any more.")
    else:
        given.output.value({"node": node.name}, [f"node/{node.name}"])
    return ExitCode.DONE


async def _node(backend: Backend, text: str) -> Subject:
    subject = await backend.subject(text)
    if subject.kind is not SubjectKind.NODE:
        raise UsageError(f"{text} is no node: only nodes can be drained.")
    return subject


async def _follow(backend: Backend, node: Subject, seconds: float, say: Say) -> None:
    """Prints what happens to the jobs on the node until none of them uses it.

    Raises:
        NotNowError: That takes longer, or a job was stopped without a checkpoint.
    """
    started, said, began = time.monotonic(), dict[str, str](), dict[str, JobView]()
    while True:
        try:
            status = await backend.status()
        except (NotNowError, UnreachableError):  # As during a restart of the supervisor.
            status = None
        waits_for = [f"no supervisor has answered about {node.name}"] if status is None else list(_users(status, node))
        for job in () if status is None else status.jobs:
            line = f"{job.job} is {job.phase}: {job.reason}"
            is_concerned = job.job in said or bool(status and status.hosts_on(job, node.kind, node.name))
            if is_concerned:
                began.setdefault(job.job, job)
            if is_concerned and said.get(job.job) != line:
                said[job.job] = line
                say(f"{time.monotonic() - started:6.1f} s  {line}")
        if not waits_for:
            say(f"{time.monotonic() - started:6.1f} s  No supervised job uses node {node.name}.")
            _check_saved(began, status)
            return
        if time.monotonic() > started + seconds:
            raise NotNowError(f"After {seconds:g} s, {'; '.join(waits_for)}. The drain stands.")
        await asyncio.sleep(_POLL_SECONDS)


def _check_saved(began: Mapping[str, JobView], status: Status | None) -> None:
    """Raises if a run that was stopped for the drain has saved nothing; `began` are the jobs as they were at first."""
    for job in () if status is None else status.jobs:
        before = began.get(job.job)
        is_stopped = before is not None and (not job.running or job.run > before.run)
        why = unsaved(before, job) if before is not None and is_stopped else None
        if why is not None:
            raise NotNowError(f"{job.job} is {job.phase}, but {why} The drain stands.")


def _users(status: Status, node: Subject) -> Iterator[str]:
    """Says of each job that still uses the node how it does."""
    for job in status.concerned(node.kind, node.name):
        hosts = status.hosts_on(job, node.kind, node.name)
        if job.running and not job.over and (_is_changing(job) or not all(host.excluded for host in hosts)):
            yield f"{job.job} is {job.phase}: {job.reason}"


def _is_changing(job: JobView) -> bool:
    return job.phase in ("Shrinking", "Stopping")
