"""`job-supervisor status | explain | simulate`."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TextIO

import msgspec

from supervisor.cli.arguments import parser
from supervisor.cli.backend import Backend, Subject
from supervisor.cli.connect import connect
from supervisor.cli.data_dir import whoami
from supervisor.cli.drill import consequences, follow, started
from supervisor.cli.errors import CliError, ExitCode, NotNowError, UnknownError, UnreachableError, UsageError
from supervisor.cli.explain import explain
from supervisor.cli.overview import overview
from supervisor.cli.status import Job, Status
from supervisor.cli.text import printable

_CLEAR = "\x1b[H\x1b[2J"

Print = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code, see `ExitCode`."""
    given = parser().parse_args(arguments)
    try:
        return asyncio.run(_run(given))
    except CliError as error:
        _print_error(str(error))
        return error.code
    except (KeyboardInterrupt, asyncio.CancelledError):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # Whoever read has seen enough; nothing is left to be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE


async def _run(given: argparse.Namespace) -> ExitCode:
    this = asyncio.current_task()
    if this is not None:  # As Ctrl-C does: a drill that is waited for is to be ended.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with connect(given, os.environ) as backend:
        match given.command:
            case "status":
                return await _status(backend, given)
            case "explain":
                return await _explain(backend, given)
            case _:
                return await _simulate(backend, given)


async def _status(backend: Backend, given: argparse.Namespace) -> ExitCode:
    _show(await backend.status(), given)
    with suppress(asyncio.CancelledError):  # Ctrl-C is how this ends.
        while given.watch:
            await asyncio.sleep(given.interval)
            try:
                _show(await backend.status(), given)
            except (NotNowError, UnreachableError) as error:
                _print_error(str(error))
    return ExitCode.DONE


def _show(status: Status, given: argparse.Namespace) -> None:
    if given.output == "json":
        _say(_json(status))
        return
    if given.watch and sys.stdout.isatty():
        sys.stdout.write(_CLEAR)
    _say(*overview(status), *([""] if given.watch else []))


async def _explain(backend: Backend, given: argparse.Namespace) -> ExitCode:
    status = await backend.status()
    job = _one(list(status.find(given.job)), given.job)
    if given.output == "json":
        notices = [
            notice for key, notice in status.by_id.items() if key in {host.notice for host in status.hosts_of(job)}
        ]
        _say(_json({"job": job, "notices": notices, "unseen": status.unseen}))
    else:
        _say(*explain(job, status))
    return ExitCode.DONE


def _one(found: list[Job], name: str) -> Job:
    if not found:
        raise UnknownError(f"There is no supervised job {name}. `job-supervisor status` lists all.")
    if len(found) > 1:
        raise UsageError(f"{name} may be {' or '.join(job.job for job in found)}: name it whole.")
    return found[0]


async def _simulate(backend: Backend, given: argparse.Namespace) -> ExitCode:
    subject = None if given.subject is None else await backend.subject(given.subject)
    if given.end:
        return await _end(backend, subject, given)
    if subject is None:
        raise UsageError("Which node or pod? A drill is about one of them.")
    as_json = given.output == "json"
    say: Print = _print_error if as_json else _say
    before = await backend.status()
    for sentence in consequences(subject, before):
        say(sentence)
    if not given.yes:
        _confirm()
    await backend.begin(subject, given.lead, whoami())
    say(started(subject, given.lead))
    history = await _follow_drill(backend, subject, before, say) if given.wait else {}
    if as_json:
        _say(_json({"subject": subject, "lead_seconds": given.lead, "phases": history}))
    return ExitCode.DONE


async def _follow_drill(backend: Backend, subject: Subject, before: Status, say: Print) -> Mapping[str, list[str]]:
    try:
        return await follow(backend, subject, before, say)
    except BaseException:
        # Whoever interrupts, or cannot follow it any more, wants no drill that goes on.
        with suppress(CliError):
            for each in await backend.end(subject):
                _print_error(f"The drill on {each.kind} {each.name} is ended.")
        raise


async def _end(backend: Backend, subject: Subject | None, given: argparse.Namespace) -> ExitCode:
    ended = await backend.end(subject)
    if given.output == "json":
        _say(_json({"ended": ended}))
    elif not ended:
        _say("There was no drill.")
    for each in ended if given.output == "table" else ():
        _say(f"The drill on {each.kind} {each.name} is ended.")
    return ExitCode.DONE


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise UsageError("All of this will really happen. Say --yes where nobody can be asked.")
    sys.stderr.write("All of this will really happen. Begin the drill? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("No drill was begun.")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _say(*lines: str) -> None:
    _write(sys.stdout, lines)


def _print_error(line: str) -> None:
    _write(sys.stderr, [line])


def _write(stream: TextIO, lines: Iterable[str]) -> None:
    stream.write("".join(printable(line) + "\n" for line in lines))
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
