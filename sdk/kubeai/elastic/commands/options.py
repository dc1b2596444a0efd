"""Parses and validates the command line and environment of kubeai-run."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, Mapping, NoReturn, Sequence
from urllib.parse import urlsplit

from kubeai.elastic.version import __version__

from . import hosts
from .link import SupervisorAccess
from .orders import EXIT_CODE_MEANINGS, JobRequest, RunExitCode
from .reconcile import RunLimits

TOKEN_FILE_VARIABLE = "KUBEAI_LAUNCHER_TOKEN_FILE"  # noqa: S105 - the name of a variable.
_SUPERVISOR, _DIRECTORY = "KUBEAI_SUPERVISOR", "KUBEAI_DIR"
_JOB_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_MAX_BACK_OFF_SECONDS = 60.0

_DESCRIPTION = """\
Registers a job with the supervisor, runs its launcher command, and keeps the job running through reclaims: it excludes
hosts that will be reclaimed, distinguishes a stop from a failure, and starts the command again after a suspension.

In the command's arguments, {workers} is replaced by the number of granted hosts. Its environment contains KUBEAI_DIR,
KUBEAI_JOB, KUBEAI_RUN, KUBEAI_WORKERS and KUBEAI_HOSTS_*, which kubeai-discover-hosts reads.
"""


class CommandUsageError(Exception):
    """The command line, or a file that it names, is invalid."""

    code = RunExitCode.USAGE


class CommandSettingError(CommandUsageError):
    """A variable of the environment, or a file that it names, is invalid."""

    code = RunExitCode.CONFIG


def _whole(minimum: int, maximum: float = math.inf) -> Callable[[str], int]:
    """Return a function that reads a whole number within bounds. It raises argparse.ArgumentTypeError."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not minimum <= number <= maximum:
            bounds = f"at least {minimum}" if math.isinf(maximum) else f"between {minimum} and {maximum:g}"
            raise argparse.ArgumentTypeError(f"{text} is not {bounds}")
        return number

    return read


_PORT = _whole(0, hosts.HIGHEST_PORT)


@dataclass(frozen=True)
class RunOptions:
    """The parsed command line.

    Attributes:
        job: The request of the job.
        supervisor: The supervisor to call.
        source: The operator's host list.
        port: TCP port that must answer before a new host is listed; 0 = no check.
        limits: Limits in time and number.
        back_off: Seconds before the first restart.
        directory: The run's KUBEAI_DIR; None = a temporary one.
        command: The launcher's command, with {workers} not yet replaced.
    """

    job: JobRequest
    supervisor: SupervisorAccess
    source: hosts.HostSource
    port: int
    limits: RunLimits
    back_off: float
    directory: Path | None
    command: tuple[str, ...]


class RaisingParser(argparse.ArgumentParser):
    """Raises CommandUsageError where argparse would exit with code 2."""

    def error(self, message: str) -> NoReturn:
        """Raise CommandUsageError with argparse's message."""
        raise CommandUsageError(message)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> RunOptions:
    """Parse the command line.

    Raises:
        CommandUsageError: It is invalid.
    """
    before, command = split_command(argv)
    given = _parser().parse_args(before)
    job, supervisor, source, port = _job(given), _supervisor(given, environ), _source(given, environ), given.port
    if port is None:
        try:
            port = _PORT(environ.get(hosts.PORT_VARIABLE) or str(hosts.DEFAULT_PORT))
        except argparse.ArgumentTypeError as error:
            raise CommandSettingError(f"{hosts.PORT_VARIABLE}: {error}") from error
    if not command:
        raise CommandUsageError("the command is missing; put it after --")
    if shutil.which(command[0]) is None:
        raise CommandUsageError(f"command {command[0]!r} was not found or is not executable")
    return RunOptions(
        job=job,
        supervisor=supervisor,
        source=source,
        port=port,
        limits=RunLimits(
            restarts=given.back_off_limit,
            register=given.register_timeout,
            save=given.save_grace,
            stop=given.stop_grace,
            offline=given.offline_grace,
        ),
        back_off=given.back_off,
        directory=Path(given.directory).absolute() if given.directory else None,
        command=command,
    )


def back_off(first: float, restarts: int, draw: float) -> float:
    """Return the seconds before the next restart.

    The ceiling doubles from ``first`` up to 60 s. ``draw`` is a random number from 0 to 1 for the jitter.
    """
    # 32 doublings reach the ceiling from any useful value, and unlimited ones would overflow a float.
    ceiling = min(_MAX_BACK_OFF_SECONDS, 2.0 * first * 2.0 ** min(restarts, 32))
    return ceiling * (1 + draw) / 2


def split_command(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the arguments before `--`, and the command after it."""
    arguments = list(argv)
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def _job(given: argparse.Namespace) -> JobRequest:
    if not _JOB_NAME.fullmatch(given.job):
        raise CommandUsageError("--job: 1 to 253 characters of a-z 0-9 - . that start and end with a letter or digit")
    least, most, multiple = given.min_workers, given.max_workers, given.worker_multiple
    # Without --workers, the largest number that the job can have.
    requested: int = most - most % multiple if given.workers is None else given.workers
    if requested % multiple:
        raise CommandUsageError(f"--workers {requested} is not a multiple of --worker-multiple {multiple}")
    if not least <= requested <= most:
        if least <= most and given.workers is None:
            raise CommandUsageError(
                f"no multiple of --worker-multiple {multiple} lies from --min-workers to --max-workers"
            )
        raise CommandUsageError("--min-workers <= --workers <= --max-workers does not hold")
    return JobRequest(
        name=given.job,
        framework=given.framework,
        min_workers=least,
        max_workers=most,
        requested_workers=requested,
        max_wait_seconds=given.max_wait_time,
        launcher_host=given.launcher_host,
        on_loss=given.on_loss,
        worker_multiple=multiple,
    )


def _supervisor(given: argparse.Namespace, environ: Mapping[str, str]) -> SupervisorAccess:
    supervisor = given.supervisor or environ.get(_SUPERVISOR)
    token = given.token_file or environ.get(TOKEN_FILE_VARIABLE)
    if not supervisor or not token:
        raise CommandUsageError(f"--supervisor [{_SUPERVISOR}] and --token-file [{TOKEN_FILE_VARIABLE}] are required")
    with _names(given.supervisor, _SUPERVISOR):
        _check_address(supervisor)
    token_file = Path(token).absolute()
    with _names(given.token_file, TOKEN_FILE_VARIABLE):
        _check_readable(token_file)
    ca_file = Path(given.ca_file).absolute() if given.ca_file else None
    if ca_file is not None:
        _check_readable(ca_file)
    return SupervisorAccess(supervisor, token_file, ca_file)


@contextlib.contextmanager
def _names(option: object, variable: str) -> Iterator[None]:
    """Name the environment variable in the error of a wrong value, if no option was given for the value."""
    try:
        yield
    except CommandUsageError as error:
        if option is None:
            raise CommandSettingError(f"{variable}: {error}") from error
        raise


def _source(given: argparse.Namespace, environ: Mapping[str, str]) -> hosts.HostSource:
    """Choose the source of the host list. A file must exist at the start; later the last good list replaces it."""
    source = hosts.source(given.hosts_file, given.hosts_script, environ)
    if source.script is None:
        try:
            hosts.read_text(source.file)
        except OSError as error:
            if given.hosts_file is None and environ.get(hosts.FILE_VARIABLE):
                raise CommandSettingError(f"{hosts.FILE_VARIABLE}: {source.file}: {error.strerror}") from error
            raise CommandUsageError(f"--hosts-file {source.file}: {error.strerror}") from error
    return source


def _check_address(address: str) -> None:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        usable = False
    if not usable:
        raise CommandUsageError("the supervisor's address must be http://HOST:PORT or https://HOST:PORT")
    host = parts.hostname or ""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if parts.scheme == "http" and not is_loopback:
        raise CommandUsageError(
            "the supervisor's address must use https beyond this machine, because every call contains the token"
        )


def _check_readable(path: Path) -> None:
    try:
        path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CommandUsageError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = RaisingParser(
        prog="kubeai-run",
        usage="kubeai-run --job NAME --max-workers N [options] -- COMMAND [ARGUMENT ...]",
        description=_DESCRIPTION,
        epilog="exit codes:\n"
        + "".join(f"  {code.value:>3}  {meaning}\n" for code, meaning in EXIT_CODE_MEANINGS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kubeai-run {__version__}")
    _add_job(parser)
    _add_surroundings(parser)
    _add_limits(parser)
    return parser


def _add_job(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the job")
    group.add_argument(
        "--job", required=True, metavar="NAME", help="name of the job; must be unique among running jobs"
    )
    group.add_argument(
        "--max-workers", required=True, type=_whole(1), metavar="N", help="maximum number of hosts (not slots)"
    )
    group.add_argument(
        "--min-workers", default=1, type=_whole(1), metavar="N", help="suspend the job below this number of hosts [1]"
    )
    group.add_argument("--workers", type=_whole(1), metavar="N", help="number of hosts to request [--max-workers]")
    group.add_argument(
        "--worker-multiple",
        default=1,
        type=_whole(1),
        metavar="N",
        help="every size of the job is a multiple of it, such as the hosts that one copy of the model needs [1]",
    )
    group.add_argument(
        "--on-loss",
        default="shrink",
        choices=("shrink", "hold"),
        help="what the job does when it loses hosts: continue with the others while they are at least --min-workers, "
        "or save, wait for replacements and continue with --workers [shrink]",
    )
    group.add_argument("--framework", default="horovod", choices=("horovod", "torchrun"), help="[horovod]")
    group.add_argument("--launcher-host", metavar="HOST", help="name of this host, if it may be reclaimed itself")
    group.add_argument(
        "--max-wait-time",
        default=0.0,
        type=seconds,
        metavar="SECONDS",
        help="how long to wait for resources; 0 = forever [0]",
    )


def _add_surroundings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the supervisor")
    group.add_argument("--supervisor", metavar="ADDRESS", help=f"http(s)://HOST:PORT [{_SUPERVISOR}]")
    group.add_argument(
        "--token-file",
        metavar="PATH",
        help=f"file with a launcher token [{TOKEN_FILE_VARIABLE}]",
    )
    group.add_argument("--ca-file", metavar="PATH", help="CA certificates to trust (PEM)")
    group.add_argument(
        "--directory",
        metavar="PATH",
        help=f"{_DIRECTORY} of the job's processes; created with mode 0700 [a temporary one, removed at the end]",
    )
    group = parser.add_argument_group("the operator's host list")
    group.add_argument(
        "--hosts-file", metavar="PATH", help=f"the list as a file [{hosts.FILE_VARIABLE}, {hosts.DEFAULT_FILE}]"
    )
    group.add_argument("--hosts-script", metavar="COMMAND", help=f"command that prints it [{hosts.SCRIPT_VARIABLE}]")
    group.add_argument(
        "--port",
        type=_PORT,
        help=f"must answer before a new host is listed; 0 = no check [{hosts.PORT_VARIABLE}, {hosts.DEFAULT_PORT}]",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--back-off-limit", default=6, type=_whole(0), metavar="N", help="maximum number of restarts after failures [6]"
    )
    group.add_argument(
        "--back-off",
        default=1.0,
        type=seconds,
        metavar="SECONDS",
        help="delay before the first restart; doubles up to 60 [1]",
    )
    group.add_argument(
        "--register-timeout",
        default=60.0,
        type=seconds,
        metavar="SECONDS",
        help="time limit to reach the supervisor at the start [60]",
    )
    group.add_argument(
        "--save-grace",
        default=60.0,
        type=seconds,
        metavar="SECONDS",
        help="time for a checkpoint after SIGTERM or SIGINT, before --stop-grace; 0 = none [60]",
    )
    group.add_argument(
        "--stop-grace",
        default=10.0,
        type=seconds,
        metavar="SECONDS",
        help="time from SIGTERM to SIGKILL for the command [10]",
    )
    group.add_argument(
        "--offline-grace",
        default=30.0,
        type=seconds,
        metavar="SECONDS",
        help="how long to wait for an absent supervisor to say that a command's exit was a stop, not a failure [30]",
    )


def seconds(text: str) -> float:
    """Read a number of seconds. Raises argparse.ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number
