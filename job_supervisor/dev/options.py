"""Defines the arguments of `elastic-job-supervisor dev`."""

import argparse
import os
import shlex
import shutil
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path

from job_supervisor.cli.data_dir import default_directory
from supervisor.__main__ import AddedCommand

_MAX_HOSTS = 32
JOB = "sample"

DESCRIPTION = """\
Runs a supervisor, simulated hosts with a node agent each, and a training job, on this machine alone. All of it is
real except for the hosts, which are this machine under other names: a file announces their reclaim instead of a cloud.

Without a command of your own the job is a small one that needs no framework: a launcher that starts a training process
on each host, in plain Python. `job-supervisor status`, `explain` and `simulate` find this supervisor by themselves.
"""
EPILOG = """\
exit codes:
  0    stopped by a signal, the job has ended successfully, or the drill has passed
  1    a process has failed, or the drill has not passed
  64   wrong usage
  130  the drill was interrupted
"""


class DevError(Exception):
    """`dev` cannot start, or ends. The message is a whole sentence for the user."""


class DevUsageError(DevError):
    """The command line cannot be used as it is."""


class ChildEnded(DevError):  # noqa: N818 - the name describes what happened
    """A process has ended that should run. The message names it and contains its last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevOptions:
    """`command` is the user's own job; empty for the sample job, None for no job."""

    hosts: tuple[str, ...]
    min_workers: int
    directory: Path
    command: tuple[str, ...] | None
    drill: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    home, default = os.environ.get("HOME"), default_directory(os.environ)
    shown = f"~/{default.relative_to(home)}" if home and default.is_relative_to(home) else str(default)
    parser.usage = "elastic-job-supervisor dev [options] [-- COMMAND [ARGUMENT ...]]"
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--hosts", type=int, default=4, metavar="N", help="simulated hosts (default 4)")
    parser.add_argument(
        "--min-workers",
        type=int,
        metavar="N",
        help="the job is suspended below this many hosts (default: half of them)",
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=f"directory of all files (default {shown})")
    parser.add_argument("--no-job", action="store_true", help="start no job")
    parser.add_argument(
        "--drill",
        action="store_true",
        help="reclaim hosts of the sample job, check that no step is lost, and end with a verdict",
    )
    parser.add_argument("own", nargs="*", metavar="COMMAND", help="the launcher of your own job, after --")


def _run(given: argparse.Namespace) -> int:
    # Imported here: the other commands need neither its client nor its processes.
    from job_supervisor.dev.command import run  # noqa: PLC0415

    return run(given)


COMMAND = AddedCommand(
    name="dev",
    help="run a supervisor, simulated hosts and a job here, to try it out",
    add_arguments=add_arguments,
    run=_run,
)
"""`elastic-job-supervisor dev`."""


def options(given: argparse.Namespace) -> DevOptions:
    """Checks the arguments.

    Raises:
        DevUsageError: They do not fit together.
    """
    least = max(1, given.hosts // 2) if given.min_workers is None else given.min_workers
    if not 1 <= given.hosts <= _MAX_HOSTS:
        raise DevUsageError(f"--hosts must be between 1 and {_MAX_HOSTS}.")
    if not 1 <= least <= given.hosts:
        raise DevUsageError("--min-workers must be at least 1 and at most --hosts.")
    if given.no_job and given.own:
        raise DevUsageError("--no-job and a command exclude each other.")
    if given.drill and (given.no_job or given.own):
        raise DevUsageError(
            "--drill works with the sample job, whose steps it can count: leave out --no-job and COMMAND."
        )
    if given.drill and least == given.hosts:
        raise DevUsageError(
            "--drill reclaims one host that the job can do without: --min-workers must be below --hosts."
        )
    return DevOptions(
        hosts=tuple(f"host-{number}" for number in range(1, given.hosts + 1)),
        min_workers=least,
        directory=(given.data_dir or default_directory(os.environ)).absolute(),
        command=None if given.no_job else tuple(given.own),
        drill=given.drill,
    )


def instructions(chosen: DevOptions, link: str, token: Path) -> str:
    """Tells the user which commands to type in another terminal."""
    name = "job-supervisor"
    if shutil.which(name) is None:  # As in a checkout, whose environment is not activated.
        beside = Path(sysconfig.get_path("scripts")) / name
        name = shlex.quote(str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside))
    where = "" if chosen.directory == default_directory(os.environ).absolute() else f" --data-dir {chosen.directory}"
    job = f"{name} explain{where} {JOB}\n" if chosen.command is not None else ""
    last = chosen.hosts[-1]
    typed = f"""\
        {name} status{where} --watch
        {job.strip()}
        {name} simulate{where} {last} --lead 60s --wait
        """
    lines = [line for line in textwrap.dedent(typed).splitlines() if line.strip()]
    return "\n".join(
        [
            "Type in another terminal:",
            *(f"  {line}" for line in lines),
            f"Or open {link} in a browser, which this link signs in, once.",
            f"For other browsers there is a token, which may only look, in {token}.",
            "Ctrl-C ends everything.",
        ]
    )
