"""kubeai-each-host: runs one command on each host of the job. See --help."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import queue
import random
import shlex
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping, NoReturn, Sequence

from kubeai.elastic.version import __version__

from .command import Command
from .exit_codes import ExitCode
from .options import SettingError, UsageError, back_off
from .placement import Place, Plan, plan

_DESCRIPTION = """\
Runs one command on each host that kubeai-run was granted, such as an elastic agent of torchrun:

  kubeai-run --framework torchrun ... -- kubeai-each-host -- torchrun --rdzv-backend=kubeai ... train.py

The command also runs on hosts that will be reclaimed, where an elastic agent waits for a withdrawal. It is started on
each new host, and started again where a host returns as a new machine. It is ended on hosts that are no longer granted.
On each host its environment contains KUBEAI_HOST and the other KUBEAI_* variables of kubeai-run.

The exit code is 0 as soon as the command has ended with 0 on one host and has ended on all others; otherwise it is
that of a command that failed more often than --restarts allows.
"""
_SSH = "ssh -tt -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
_LOOK_SECONDS = 0.2
_BACK_OFF_SECONDS = 1.0
_SIGNAL_CODES = 128


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


@dataclass(frozen=True)
class Options:
    """The command line and what it was started with.

    Attributes:
        directory: The run's KUBEAI_DIR.
        command: The command of each host.
        environment: The whole environment of this process.
        remote: How a host is reached; () = all commands run on this machine.
        forward: Names of further variables that a remote command gets.
        restarts: How often a failed command is started again on the same machine.
        grace: Seconds from SIGTERM to SIGKILL for each command.
    """

    directory: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    remote: tuple[str, ...]
    forward: tuple[str, ...]
    restarts: int
    grace: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on each host; return the exit code."""
    try:
        options = _options(sys.argv[1:] if argv is None else argv, os.environ)
    except UsageError as error:
        _log(str(error))
        return error.code
    return EachHost(options).run()


class EachHost:
    """Runs the command on each host until all have ended, or until a signal ends them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._places: Mapping[str, Place] = {}
        self._commands: dict[str, Command] = {}
        # SimpleQueue.put may be called from a signal handler.
        self._events: queue.SimpleQueue[int | tuple[str, int]] = queue.SimpleQueue()
        self._granted: tuple[str, ...] = ()
        self._excluded: frozenset[str] = frozenset()

    def run(self) -> int:
        """Run until the end.

        Returns:
            The exit code.
        """
        with _signals(self._events):
            while True:
                self._read_lists()
                now = time.monotonic()
                step = plan(self._places, self._granted, self._excluded, self._options.restarts, now)
                self._places = step.places
                if step.code is not None:
                    return _status(step.code)
                self._execute(step)
                event = self._next(now + _LOOK_SECONDS if step.at is None else min(step.at, now + _LOOK_SECONDS))
                if isinstance(event, int):
                    self._end_all()
                    return _SIGNAL_CODES + event
                if event is not None:
                    self._ended(*event)

    def _execute(self, step: Plan) -> None:
        for host in step.end:
            self._commands[host].end_within(self._options.grace)
        self._places = {
            host: self._started(host, place) if host in step.start else place for host, place in step.places.items()
        }

    def _started(self, host: str, place: Place) -> Place:
        """Start the command on a host. A machine that has no process left for it is a failure like others."""
        _log(f"starting the command on {host}")
        environment = {**self._options.environment, "KUBEAI_HOST": host}
        arguments = list(self._options.command)
        if self._options.remote:
            arguments = [*self._options.remote, host, self._remote(environment)]
        try:
            self._commands[host] = Command(
                arguments, environment, self._options.grace, lambda code: self._events.put((host, code))
            )
        except OSError as error:
            _log(f"{host}: {error}")
            return place.ended(ExitCode.USAGE, time.monotonic() + _BACK_OFF_SECONDS)
        return place.started()

    def _remote(self, environment: Mapping[str, str]) -> str:
        """Return the command as a line for the shell of another host, with this directory and our variables."""
        ours = {
            name: value
            for name, value in environment.items()
            if name.startswith("KUBEAI_") or name in self._options.forward
        }
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(ours.items()))
        command = " ".join(map(shlex.quote, self._options.command))
        return f"cd {shlex.quote(str(Path.cwd()))} && exec env {variables} {command}"

    def _ended(self, host: str, code: int) -> None:
        _log(f"the command on {host} ended with {code}")
        del self._commands[host]
        place = self._places.get(host)
        if place is not None:
            delay = back_off(_BACK_OFF_SECONDS, place.failures, random.random())  # noqa: S311 - jitter.
            self._places = {**self._places, host: place.ended(code, time.monotonic() + delay)}

    def _end_all(self) -> None:
        for command in self._commands.values():
            command.end_within(self._options.grace)
        for command in self._commands.values():
            command.join()

    def _read_lists(self) -> None:
        """Read the exclusions last: kubeai-run writes them before it adds a host that is excluded."""
        with contextlib.suppress(OSError):
            granted = _words(self._options.directory / "hosts")
            self._excluded = frozenset(_words(self._options.directory / "exclusions"))
            self._granted = granted

    def _next(self, until: float) -> int | tuple[str, int] | None:
        try:
            return self._events.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None


@contextlib.contextmanager
def _signals(events: queue.SimpleQueue[int | tuple[str, int]]) -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, lambda got, _: events.put(int(got))) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous):
            signal.signal(number, handler)


def _options(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    before, command = _split(argv)
    given = _parser().parse_args(before)
    directory = environ.get("KUBEAI_DIR")
    if not directory:
        raise SettingError("KUBEAI_DIR is not set: start this as the command of kubeai-run")
    if not command:
        raise UsageError("the command is missing; put it after --")
    remote = () if given.local else tuple(shlex.split(given.ssh))
    program = remote[0] if remote else command[0]
    if shutil.which(program) is None:
        raise UsageError(f"command {program!r} was not found or is not executable")
    return Options(
        directory=Path(directory),
        command=command,
        environment=dict(environ),
        remote=remote,
        forward=tuple(given.x),
        restarts=given.restarts,
        grace=given.stop_grace,
    )


def _split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    arguments = list(argv)
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kubeai-each-host",
        usage="kubeai-each-host [options] -- COMMAND [ARGUMENT ...]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kubeai-each-host {__version__}")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--local", action="store_true", help="run all commands on this machine, such as for a trial")
    how.add_argument("--ssh", default=_SSH, metavar="COMMAND", help=f"how to reach a host [{_SSH}]")
    parser.add_argument("-x", action="append", default=[], metavar="NAME", help="pass on this variable, too")
    parser.add_argument(
        "--restarts", default=3, type=_count, metavar="N", help="start a failed command again on the same machine [3]"
    )
    parser.add_argument(
        "--stop-grace",
        default=8.0,
        type=_seconds,
        metavar="SECONDS",
        help="time from SIGTERM to SIGKILL; must be less than that of kubeai-run [8]",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")


def _words(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8", errors="surrogateescape").split())


def _status(code: int) -> int:
    return _SIGNAL_CODES - code if code < 0 else code


def _log(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"kubeai-each-host: {' '.join(text.split())}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
