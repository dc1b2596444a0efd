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
from typing import Iterator, Mapping, NoReturn, Sequence
from urllib.parse import urlsplit

from kubeai.elastic.version import __version__

from . import hosts
from .exit_codes import ExitCode
from .link import Supervisor
from .orders import Job
from .reconcile import Limits

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


class UsageError(Exception):
    """The command line, or a file that it names, is invalid."""

    code = ExitCode.USAGE


class SettingError(UsageError):
    """A variable of the environment, or a file that it names, is invalid."""

    code = ExitCode.CONFIG


@dataclass(frozen=True)
class Options:
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

    job: Job
    supervisor: Supervisor
    source: hosts.Source
    port: int
    limits: Limits
    back_off: float
    directory: Path | None
    command: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Parse the command line.

    Raises:
        UsageError: It is invalid.
    """
    before, command = _split(argv)
    given = _parser().parse_args(before)
    return Options(
        job=_job(given),
        supervisor=_supervisor(given, environ),
        source=_source(given, environ),
        port=_port_of(environ) if given.port is None else given.port,
        limits=Limits(
            restarts=given.back_off_limit,
            register=given.register_timeout,
            save=given.save_grace,
            stop=given.stop_grace,
            offline=given.offline_grace,
        ),
        back_off=given.back_off,
        directory=Path(given.directory).absolute() if given.directory else None,
        command=_command(command),
    )


def back_off(first: float, restarts: int, draw: float) -> float:
    """Return the seconds before the next restart.

    The ceiling doubles from ``first`` up to 60 s. ``draw`` is a random number from 0 to 1 for the jitter.
    """
    # 32 doublings reach the ceiling from any useful value, and unlimited ones would overflow a float.
    ceiling = min(_MAX_BACK_OFF_SECONDS, 2.0 * first * 2.0 ** min(restarts, 32))
    return ceiling * (1 + draw) / 2


def _split(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    arguments = list(argv)
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _command(arguments: Sequence[str]) -> tuple[str, ...]:
    if not arguments:
        raise UsageError("the command is missing; put it after --")
    if shutil.which(arguments[0]) is None:
        raise UsageError(f"command {arguments[0]!r} was not found or is not executable")
    return tuple(arguments)


def _job(given: argparse.Namespace) -> Job:
    if not _JOB_NAME.fullmatch(given.job):
        raise UsageError("--job: 1 to 253 characters of a-z 0-9 - . that start and end with a letter or digit")
    return Job(
        name=given.job,
        framework=given.framework,
        min_workers=given.min_workers,
        max_workers=given.max_workers,
        requested_workers=_requested_workers(given),
        max_wait_seconds=given.max_wait_time,
        launcher_host=given.launcher_host,
        on_loss=given.on_loss,
        worker_multiple=given.worker_multiple,
    )


def _requested_workers(given: argparse.Namespace) -> int:
    """Return --workers, or without it the largest number that the job can have."""
    least, most, multiple = given.min_workers, given.max_workers, given.worker_multiple
    requested: int = most - most % multiple if given.workers is None else given.workers
    if requested % multiple:
        raise UsageError(f"--workers {requested} is not a multiple of --worker-multiple {multiple}")
    if not least <= requested <= most:
        if least <= most and given.workers is None:
            raise UsageError(f"no multiple of --worker-multiple {multiple} lies from --min-workers to --max-workers")
        raise UsageError("--min-workers <= --workers <= --max-workers does not hold")
    return requested


def _supervisor(given: argparse.Namespace, environ: Mapping[str, str]) -> Supervisor:
    supervisor = given.supervisor or environ.get(_SUPERVISOR)
    token = given.token_file or environ.get(TOKEN_FILE_VARIABLE)
    if not supervisor or not token:
        raise UsageError(f"--supervisor [{_SUPERVISOR}] and --token-file [{TOKEN_FILE_VARIABLE}] are required")
    with _names(given.supervisor, _SUPERVISOR):
        _check_address(supervisor)
    token_file = Path(token).absolute()
    with _names(given.token_file, TOKEN_FILE_VARIABLE):
        _text(token_file)
    ca_file = Path(given.ca_file).absolute() if given.ca_file else None
    if ca_file is not None:
        _text(ca_file)
    return Supervisor(supervisor, token_file, ca_file)


@contextlib.contextmanager
def _names(option: object, variable: str) -> Iterator[None]:
    """Blame the variable for what is wrong with a value, if no option was given for it."""
    try:
        yield
    except UsageError as error:
        if option is None:
            raise SettingError(f"{variable}: {error}") from error
        raise


def _port_of(environ: Mapping[str, str]) -> int:
    try:
        return _port(environ.get(hosts.PORT_VARIABLE) or str(hosts.DEFAULT_PORT))
    except argparse.ArgumentTypeError as error:
        raise SettingError(f"{hosts.PORT_VARIABLE}: {error}") from error


def _source(given: argparse.Namespace, environ: Mapping[str, str]) -> hosts.Source:
    """Choose the source of the host list. A file must exist at the start; later the last good list replaces it."""
    source = hosts.source(given.hosts_file, given.hosts_script, environ)
    if source.script is None:
        try:
            hosts.read_text(source.file)
        except OSError as error:
            if given.hosts_file is None and environ.get(hosts.FILE_VARIABLE):
                raise SettingError(f"{hosts.FILE_VARIABLE}: {source.file}: {error.strerror}") from error
            raise UsageError(f"--hosts-file {source.file}: {error.strerror}") from error
    return source


def _check_address(address: str) -> None:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        usable = False
    if not usable:
        raise UsageError("the supervisor's address must be http://HOST:PORT or https://HOST:PORT")
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise UsageError(
            "the supervisor's address must use https beyond this machine, because every call contains the token"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kubeai-run",
        usage="kubeai-run --job NAME --max-workers N [options] -- COMMAND [ARGUMENT ...]",
        description=_DESCRIPTION,
        epilog="exit codes:\n" + "".join(f"  {code.value:>3}  {code.meaning}\n" for code in ExitCode),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kubeai-run {__version__}")
    _add_job(parser)
    _add_supervisor(parser)
    _add_hosts(parser)
    _add_limits(parser)
    return parser


def _add_job(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the job")
    group.add_argument(
        "--job", required=True, metavar="NAME", help="name of the job; must be unique among running jobs"
    )
    group.add_argument(
        "--max-workers", required=True, type=_workers, metavar="N", help="maximum number of hosts (not slots)"
    )
    group.add_argument(
        "--min-workers", default=1, type=_workers, metavar="N", help="suspend the job below this number of hosts [1]"
    )
    group.add_argument("--workers", type=_workers, metavar="N", help="number of hosts to request [--max-workers]")
    group.add_argument(
        "--worker-multiple",
        default=1,
        type=_workers,
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
        type=_seconds,
        metavar="SECONDS",
        help="how long to wait for resources; 0 = forever [0]",
    )


def _add_supervisor(parser: argparse.ArgumentParser) -> None:
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


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the operator's host list")
    group.add_argument(
        "--hosts-file", metavar="PATH", help=f"the list as a file [{hosts.FILE_VARIABLE}, {hosts.DEFAULT_FILE}]"
    )
    group.add_argument("--hosts-script", metavar="COMMAND", help=f"command that prints it [{hosts.SCRIPT_VARIABLE}]")
    group.add_argument(
        "--port",
        type=_port,
        help=f"must answer before a new host is listed; 0 = no check [{hosts.PORT_VARIABLE}, {hosts.DEFAULT_PORT}]",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--back-off-limit", default=6, type=_count, metavar="N", help="maximum number of restarts after failures [6]"
    )
    group.add_argument(
        "--back-off",
        default=1.0,
        type=_seconds,
        metavar="SECONDS",
        help="delay before the first restart; doubles up to 60 [1]",
    )
    group.add_argument(
        "--register-timeout",
        default=60.0,
        type=_seconds,
        metavar="SECONDS",
        help="time limit to reach the supervisor at the start [60]",
    )
    group.add_argument(
        "--save-grace",
        default=60.0,
        type=_seconds,
        metavar="SECONDS",
        help="time for a checkpoint after SIGTERM or SIGINT, before --stop-grace; 0 = none [60]",
    )
    group.add_argument(
        "--stop-grace",
        default=10.0,
        type=_seconds,
        metavar="SECONDS",
        help="time from SIGTERM to SIGKILL for the command [10]",
    )
    group.add_argument(
        "--offline-grace",
        default=30.0,
        type=_seconds,
        metavar="SECONDS",
        help="how long to wait for an absent supervisor to say that a command's exit was a stop, not a failure [30]",
    )


def _workers(text: str) -> int:
    return _whole(text, 1)


def _count(text: str) -> int:
    return _whole(text, 0)


def _port(text: str) -> int:
    return _whole(text, 0, hosts.HIGHEST_PORT)


def _whole(text: str, minimum: int, maximum: float = math.inf) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not minimum <= number <= maximum:
        bounds = f"at least {minimum}" if math.isinf(maximum) else f"between {minimum} and {maximum:g}"
        raise argparse.ArgumentTypeError(f"{text} is not {bounds}")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number
