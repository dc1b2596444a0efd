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

from servicekit.completion import print_completion
from supervisor.cli.arguments import parser
from supervisor.cli.backend import Backend, Subject
from supervisor.cli.connect import connect
from supervisor.cli.data_dir import whoami
from supervisor.cli.drill import consequences, follow, start_message
from supervisor.cli.errors import CliError, ExitCode, NotNowError, UnknownError, UnreachableError, UsageError
from supervisor.cli.explain import explain
from supervisor.cli.overview import overview
from supervisor.cli.status import Job, Status
from supervisor.cli.text import printable

_CLEAR = "\x1b[H\x1b[2J"

Output = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code, an `ExitCode`."""
    given = parser().parse_args(arguments)
    if print_completion(given):
        return ExitCode.DONE
    try:
        return asyncio.run(_run(given))
    except CliError as error:
        _print_error(str(error))
        return error.code
    except (KeyboardInterrupt, asyncio.CancelledError):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # The reader has closed the pipe, and Python would flush standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE


async def _run(given: argparse.Namespace) -> ExitCode:
    task = asyncio.current_task()
    if task is not None:  # SIGTERM acts like Ctrl-C: with --wait, the drill is ended.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
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
        _print(_json(status))
        return
    if given.watch and sys.stdout.isatty():
        sys.stdout.write(_CLEAR)
    _print(*overview(status), *([""] if given.watch else []))


async def _explain(backend: Backend, given: argparse.Namespace) -> ExitCode:
    status = await backend.status()
    job = _one(list(status.find(given.job)), given.job)
    if given.output == "json":
        notices = [
            notice for key, notice in status.by_id.items() if key in {host.notice for host in status.hosts_of(job)}
        ]
        _print(_json({"job": job, "notices": notices, "unseen": status.unseen}))
    else:
        _print(*explain(job, status))
    return ExitCode.DONE


def _one(found: list[Job], name: str) -> Job:
    if not found:
        raise UnknownError(f"There is no supervised job {name}. `job-supervisor status` lists all jobs.")
    if len(found) > 1:
        raise UsageError(f"{name} is ambiguous: {' or '.join(job.job for job in found)}. Use the full name.")
    return found[0]


async def _simulate(backend: Backend, given: argparse.Namespace) -> ExitCode:
    subject = None if given.subject is None else await backend.subject(given.subject)
    if given.end:
        return await _end(backend, subject, given)
    if subject is None:
        raise UsageError("Name the node or pod of the drill.")
    is_json = given.output == "json"
    output: Output = _print_error if is_json else _print
    before = await backend.status()
    for sentence in consequences(subject, before):
        output(sentence)
    if not given.yes:
        _confirm()
    await backend.begin(subject, given.lead, whoami())
    output(start_message(subject, given.lead))
    history = await _follow_drill(backend, subject, before, output) if given.wait else {}
    if is_json:
        _print(_json({"subject": subject, "lead_seconds": given.lead, "phases": history}))
    return ExitCode.DONE


async def _follow_drill(backend: Backend, subject: Subject, before: Status, output: Output) -> Mapping[str, list[str]]:
    try:
        return await follow(backend, subject, before, output)
    except BaseException:
        # An interrupted command, or one that cannot follow the drill any more, must not leave it running.
        with suppress(CliError):
            for ended in await backend.end(subject):
                _print_error(_ended(ended))
        raise


async def _end(backend: Backend, subject: Subject | None, given: argparse.Namespace) -> ExitCode:
    ended = await backend.end(subject)
    if given.output == "json":
        _print(_json({"ended": ended}))
    elif not ended:
        _print("There was no drill.")
    for one in ended if given.output == "table" else ():
        _print(_ended(one))
    return ExitCode.DONE


def _ended(subject: Subject) -> str:
    return f"Ended the drill on {subject.kind} {subject.name}."


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise UsageError("A drill has real effects and needs a confirmation. Without a terminal, pass --yes.")
    sys.stderr.write("All of this will really happen. Start the drill? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("The drill was not started.")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _print(*lines: str) -> None:
    _write(sys.stdout, lines)


def _print_error(line: str) -> None:
    _write(sys.stderr, [line])


def _write(stream: TextIO, lines: Iterable[str]) -> None:
    stream.write("".join(printable(line) + "\n" for line in lines))
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
