"""kubeai-each-host: runs one command on each host of the job. See --help."""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import random
import shlex
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Collection, Iterator, Mapping, Sequence

from kubeai.elastic.version import __version__

from .command import Command
from .options import CommandSettingError, CommandUsageError, RaisingParser, back_off, seconds, split_command
from .orders import RunExitCode

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


@dataclass(frozen=True)
class EachHostOptions:
    """The options of the command line, and the environment in which kubeai-each-host was started.

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
    except CommandUsageError as error:
        _log(str(error))
        return error.code
    return EachHostRunner(options).run()


@dataclass(frozen=True)
class HostPlace:
    """The state of the command on one host.

    Attributes:
        running: It runs.
        code: Exit code of its last end; None before the first one.
        failures: Ends with another code than 0 since the host came.
        due: When it may be started again after a failure, by the monotonic clock.
        ending: It was asked to end, as the host is no longer granted.
        away: Since its end, the host was excluded or not granted, so what returns is another machine.
    """

    running: bool = False
    code: int | None = None
    failures: int = 0
    due: float = 0.0
    ending: bool = False
    away: bool = False

    def started(self) -> HostPlace:
        """Return the state after the command has started."""
        return replace(self, running=True, away=False, failures=0 if self.away else self.failures)

    def ended(self, code: int, due: float) -> HostPlace:
        """Return the state after the command has ended with this code; `due` is when it may be started again."""
        if self.ending:
            return HostPlace(code=code, away=True)
        return replace(self, running=False, code=code, failures=self.failures + (code != 0), due=due)


@dataclass(frozen=True)
class EachHostPlan:
    """The hosts on which the command is started or ended next.

    Attributes:
        start: Hosts on which the command is started now.
        end: Hosts on which it is asked to end, because they are no longer granted.
        places: The hosts that are still of interest.
        at: When to look again, if nothing happens before; None = not needed.
        code: The exit code, once everything has ended.
    """

    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    places: Mapping[str, HostPlace] = field(default_factory=dict)
    at: float | None = None
    code: int | None = None


def plan(
    places: Mapping[str, HostPlace], granted: Sequence[str], excluded: Collection[str], restarts: int, now: float
) -> EachHostPlan:
    """Decide what to do next. Pure.

    Args:
        places: What is known of each host.
        granted: The hosts of the job, the excluded ones among them.
        excluded: The hosts that will be reclaimed.
        restarts: How often a failed command is started again on the same machine.
        now: The monotonic clock, in seconds.
    """
    # All granted hosts, and those whose command still runs.
    kept = {
        host: place if host in granted else replace(place, ending=True)
        for host, place in places.items()
        if place.running or host in granted
    }
    for host in granted:
        place = kept.setdefault(host, HostPlace())
        if host in excluded and place.code is not None and not place.running:
            kept[host] = replace(place, away=True)
    end = tuple(host for host, place in kept.items() if place.ending and not places[host].ending)
    # A command that ended well says that the job has. The others are about to end.
    has_succeeded = any(place.code == 0 and not place.away for place in kept.values())
    waiting: dict[str, float] = {}
    for host in granted if not has_succeeded else ():
        place = kept[host]
        # A command is started on an excluded host too, where it waits for a withdrawal, but only once: that machine may
        # be gone.
        may_return = host not in excluded and (place.away or place.failures <= restarts)
        if not place.running and (place.code is None or may_return):
            waiting[host] = 0.0 if place.away or place.code is None else place.due
    later = [due for due in waiting.values() if due > now]
    start = tuple(host for host, due in waiting.items() if due <= now)
    code = None
    if not waiting and not any(place.running for place in kept.values()):  # otherwise there is something to wait for
        failed = [place.code for place in kept.values() if place.failures > restarts and not place.away]
        code = 0 if has_succeeded else next(iter(failed), None)
    return EachHostPlan(start, end, kept, min(later) if later else None, code)


class EachHostRunner:
    """Runs the command on each host until all have ended, or until a signal ends them."""

    def __init__(self, options: EachHostOptions) -> None:
        self._options = options
        self._places: Mapping[str, HostPlace] = {}
        self._commands: dict[str, Command] = {}
        # SimpleQueue.put may be called from a signal handler.
        self._events: queue.SimpleQueue[int | tuple[str, int]] = queue.SimpleQueue()
        self._granted: tuple[str, ...] = ()
        self._excluded: frozenset[str] = frozenset()

    def run(self) -> int:
        """Run until the end, and return the exit code."""
        with _signals(self._events):
            while True:
                self._read_lists()
                now = time.monotonic()
                step = plan(self._places, self._granted, self._excluded, self._options.restarts, now)
                self._places = step.places
                if step.code is not None:
                    return _SIGNAL_CODES - step.code if step.code < 0 else step.code
                for host in step.end:
                    self._commands[host].end_within(self._options.grace)
                self._places = {
                    host: self._started(host, place) if host in step.start else place
                    for host, place in step.places.items()
                }
                until = now + _LOOK_SECONDS if step.at is None else min(step.at, now + _LOOK_SECONDS)
                try:
                    event = self._events.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    continue
                if isinstance(event, int):
                    for command in self._commands.values():
                        command.end_within(self._options.grace)
                    for command in self._commands.values():
                        command.waiter.join()
                    return _SIGNAL_CODES + event
                host, code = event
                _log(f"the command on {host} ended with {code}")
                del self._commands[host]
                if host in self._places:
                    place = self._places[host]
                    delay = back_off(_BACK_OFF_SECONDS, place.failures, random.random())  # noqa: S311 - jitter.
                    self._places = {**self._places, host: place.ended(code, time.monotonic() + delay)}

    def _started(self, host: str, place: HostPlace) -> HostPlace:
        """Start the command on a host. If the machine cannot start another process, the command counts as failed."""
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
            return place.ended(RunExitCode.USAGE, time.monotonic() + _BACK_OFF_SECONDS)
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

    def _read_lists(self) -> None:
        """Read the exclusions last: kubeai-run writes them before it adds a host that is excluded."""
        with contextlib.suppress(OSError):
            granted, excluded = (
                (self._options.directory / name).read_text(encoding="utf-8", errors="surrogateescape").split()
                for name in ("hosts", "exclusions")
            )
            self._granted, self._excluded = tuple(granted), frozenset(excluded)


@contextlib.contextmanager
def _signals(events: queue.SimpleQueue[int | tuple[str, int]]) -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, lambda got, _: events.put(int(got))) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous):
            signal.signal(number, handler)


def _options(argv: Sequence[str], environ: Mapping[str, str]) -> EachHostOptions:
    before, command = split_command(argv)
    given = _parser().parse_args(before)
    directory = environ.get("KUBEAI_DIR")
    if not directory:
        raise CommandSettingError("KUBEAI_DIR is not set: start this as the command of kubeai-run")
    if not command:
        raise CommandUsageError("the command is missing; put it after --")
    remote = () if given.local else tuple(shlex.split(given.ssh))
    program = remote[0] if remote else command[0]
    if shutil.which(program) is None:
        raise CommandUsageError(f"command {program!r} was not found or is not executable")
    return EachHostOptions(
        directory=Path(directory),
        command=command,
        environment=dict(environ),
        remote=remote,
        forward=tuple(given.x),
        restarts=given.restarts,
        grace=given.stop_grace,
    )


def _parser() -> argparse.ArgumentParser:
    parser = RaisingParser(
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
        type=seconds,
        metavar="SECONDS",
        help="time from SIGTERM to SIGKILL; must be less than that of kubeai-run [8]",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _log(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"kubeai-each-host: {' '.join(text.split())}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
