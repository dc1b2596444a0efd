"""`simulate`: asks for a confirmation, starts the drill, and follows or ends it."""

import argparse
from collections.abc import Mapping
from contextlib import suppress

from job_supervisor.cli.backend import Backend, Subject
from job_supervisor.cli.confirmation import confirm
from job_supervisor.cli.data_dir import whoami
from job_supervisor.cli.drill import Output, check_known, consequences, follow, start_message
from job_supervisor.cli.errors import CliError, ExitCode, UsageError
from job_supervisor.cli.output import complain, show
from job_supervisor.cli.status import Status


async def simulate(backend: Backend, given: argparse.Namespace) -> ExitCode:
    subject = None if given.subject is None else await backend.subject(given.subject)
    if given.end:
        return await _end(backend, subject, given)
    if subject is None:
        raise UsageError("Name the node or pod of the drill.")
    say: Output = show if given.output.for_people else complain
    before = await backend.status()
    check_known(subject, before)
    for sentence in consequences(subject, before):
        say(sentence)
    if not given.yes:
        confirm("All of this will really happen. Start the drill?", "The drill was not started.")
    await backend.begin(subject, given.lead, whoami())
    say(start_message(subject, given.lead))
    history = await _follow_drill(backend, subject, before, say) if given.wait else {}
    if not given.output.for_people:
        value = {"subject": subject, "lead_seconds": given.lead, "phases": history}
        given.output.value(value, [_name(subject)])
    return ExitCode.DONE


async def _follow_drill(backend: Backend, subject: Subject, before: Status, say: Output) -> Mapping[str, list[str]]:
    try:
        return await follow(backend, subject, before, say)
    except BaseException:
        # An interrupted command, or one that cannot follow the drill any more, must not leave it running.
        with suppress(CliError):
            for ended in await backend.end(subject):
                complain(_ended(ended))
        raise


async def _end(backend: Backend, subject: Subject | None, given: argparse.Namespace) -> ExitCode:
    ended = await backend.end(subject)
    if not given.output.for_people:
        given.output.value({"ended": ended}, map(_name, ended))
    else:
        show(*(map(_ended, ended) if ended else ["There was no drill."]))
    return ExitCode.DONE


def _name(subject: Subject) -> str:
    return f"{subject.kind}/{subject.name}"


def _ended(subject: Subject) -> str:
    return f"Ended the drill on {subject.kind} {subject.name}."
