"""kubeai-discover-hosts: prints the operator's hosts that this job may use, without the excluded ones.

Made for Horovod's ``--host-discovery-script``. Horovod calls it every second and kills the whole job when it exits
non-zero, or when a listed host is unreachable for 30 s. So it always exits with 0, and a host that was not in the last
good list is admitted only once its port answers. It does not talk to the supervisor: kubeai-run maintains the files
``hosts`` (the granted ones) and ``exclusions``. An exclusion always wins.
"""

from __future__ import annotations

# pathlib would make the start of a command that runs every second a third slower.
# ruff: noqa: PTH105, PTH116, PTH118, PTH123
import argparse
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from kubeai.elastic.version import __version__

from . import hosts

if TYPE_CHECKING:
    from typing import Callable, Iterable, NoReturn, Sequence

_DEFAULT_DIRECTORY = "/var/run/kubeai"
_EXCLUSIONS = "exclusions"
_GRANTED = "hosts"
_LAST = "hosts.last"
_UNREACHABLE = "hosts.unreachable"
# The names printed last, and a file whose time is that of the last leave.
_PRINTED, _LEFT = "hosts.printed", "hosts.left"
# All new hosts together: Horovod asks again after 1 s.
_PORT_SECONDS = 0.5
# Longer than the time between two commits of a training script: only then do its workers see that hosts have left.
_JOIN_DELAY_VARIABLE = "KUBEAI_JOIN_DELAY"
_JOIN_DELAY_SECONDS = 5.0
_MAX_NAMES = 5
_STDOUT, _STDERR = 1, 2


class _DiscoverUsageError(Exception):
    pass


class _DiscoverParser(argparse.ArgumentParser):
    """Raises where argparse would exit with code 2."""

    def error(self, message: str) -> NoReturn:
        raise _DiscoverUsageError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the hosts and return 0. Problems are reported in one line on stderr."""
    problems: list[str] = []
    directory = os.environ.get("KUBEAI_DIR") or _DEFAULT_DIRECTORY
    lines = _answer(directory, sys.argv[1:] if argv is None else argv, problems)
    try:
        lines = paced(directory, lines, _join_delay(problems))
    except OSError as error:
        problems.append(f"cannot remember the list: {error.strerror}")
    try:
        _write(_STDOUT, _text(lines))
    except OSError as error:
        problems.append(f"cannot write the list: {error.strerror}")
    if problems:
        with contextlib.suppress(OSError):
            _write(_STDERR, " ".join(f"kubeai-discover-hosts: {'; '.join(problems)}".split()) + "\n")
    return 0


def _answer(directory: str, argv: Sequence[str], problems: list[str]) -> list[str]:
    """Return the lines of the hosts that may be used. Keeps the list for the next call."""
    obstacle = _obstacle_check(directory, problems)
    try:
        last = hosts.parse(hosts.read_text(os.path.join(directory, _LAST)))
    except OSError:
        last = {}  # every host is new
    try:
        options = _options(argv)
        listed = hosts.source(options.hosts_file, options.hosts_script, os.environ).read()
        admitted = _admitted(listed, last, obstacle, options.port)
    except (Exception, KeyboardInterrupt) as problem:  # noqa: BLE001 - any exit code but 0 would kill the job.
        problems.append(f"{problem or type(problem).__name__}: using the last good list")
        return [line for name, line in last.items() if not obstacle(name)]
    if admitted != last:
        temporary = f"{_LAST}.{os.getpid()}"
        try:
            _write_file(directory, temporary, _text(admitted.values()))
            os.replace(os.path.join(directory, temporary), os.path.join(directory, _LAST))
        except OSError as error:
            problems.append(f"cannot save the last good list: {error.strerror}")
    chosen = [line for name, line in admitted.items() if not obstacle(name)]
    unreachable = [name for name in listed if name not in admitted and not obstacle(name)]
    is_news = _is_news(directory, unreachable)
    if not chosen and not listed:  # say so, because Horovod would wait for a host silently
        problems.append("the operator's host list is empty")
    elif not chosen:
        reasons = [f"{name} ({obstacle(name) or f'does not answer on port {options.port}'})" for name in listed]
        problems.append(f"no host can be used: {_some(reasons)}")
    elif is_news and unreachable:
        problems.append(f"left out, as they do not answer on port {options.port}: {_some(unreachable)}")
    return chosen


def _join_delay(problems: list[str]) -> float:
    """Return for how many seconds after hosts have left no host may join.

    It reads the environment, not the options, because the delay also applies when the options are wrong.

    A negative number, a word and ``nan`` are refused.
    """
    text = os.environ.get(_JOIN_DELAY_VARIABLE) or str(_JOIN_DELAY_SECONDS)
    try:
        seconds = float(text)
        if seconds >= 0:
            return seconds
    except ValueError:
        pass
    problems.append(f"{_JOIN_DELAY_VARIABLE}: {text!r} is not a number of seconds, using {_JOIN_DELAY_SECONDS:g}")
    return _JOIN_DELAY_SECONDS


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = _DiscoverParser(
        prog="kubeai-discover-hosts", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"kubeai-discover-hosts {__version__}")
    parser.add_argument(
        "--hosts-file", metavar="PATH", help=f"the operator's host list [{hosts.FILE_VARIABLE}, {hosts.DEFAULT_FILE}]"
    )
    parser.add_argument(
        "--hosts-script",
        metavar="COMMAND",
        help=f"command that prints the list, instead of the file [{hosts.SCRIPT_VARIABLE}]",
    )
    parser.add_argument(
        "--port",
        help=f"must answer before a new host is listed; 0 = no check [{hosts.PORT_VARIABLE}, {hosts.DEFAULT_PORT}]",
    )
    options = parser.parse_args(argv)
    port = options.port or os.environ.get(hosts.PORT_VARIABLE) or str(hosts.DEFAULT_PORT)
    if not port.isdigit() or int(port) > hosts.HIGHEST_PORT:
        raise _DiscoverUsageError(f"port {port!r} is not a number from 0 to {hosts.HIGHEST_PORT}")
    options.port = int(port)
    return options


def _obstacle_check(directory: str, problems: list[str]) -> Callable[[str], str]:
    """Return a function that says why a host may not be used: it is excluded or not granted; "" if it may."""
    # Read the exclusions before and after, because a host may join or leave both lists between two reads.
    excluded = _names(directory, _EXCLUSIONS, problems) or set()
    granted = _names(directory, _GRANTED, problems)
    excluded |= _names(directory, _EXCLUSIONS, []) or set()

    def obstacle(name: str) -> str:
        if name in excluded:
            return "excluded, as it will be reclaimed"
        return "" if granted is None or name in granted else "not granted to this job"

    return obstacle


def _names(directory: str, file: str, problems: list[str]) -> set[str] | None:
    try:
        return set(hosts.read_text(os.path.join(directory, file)).split())
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{file}: {error.strerror}")
        return None


def _admitted(
    listed: dict[str, str], last: dict[str, str], obstacle: Callable[[str], str], port: int
) -> dict[str, str]:
    """Keep the hosts that were admitted before and add those whose port answers.

    Excluded hosts stay admitted, so that a withdrawn exclusion needs no new probe. A new host is not probed while it
    may not be used. A host that left the operator's list is forgotten and probed again when it returns.
    """
    new = [name for name in listed if name not in last and not obstacle(name)]
    answering = set(new) if port == 0 else _answering(new, port)
    return {name: line for name, line in listed.items() if name in last or name in answering}


def _answering(names: Sequence[str], port: int) -> set[str]:
    """Probe all hosts at once, in a daemon thread each: the resolver cannot be interrupted and must not delay us."""
    if not names:
        return set()
    import socket  # noqa: PLC0415 - usually no host is new, and nothing is probed.
    import threading  # noqa: PLC0415

    answered: list[str] = []

    def ask(name: str) -> None:
        try:
            socket.create_connection((name, port), timeout=_PORT_SECONDS).close()
            answered.append(name)
        except (OSError, ValueError):
            # Unreachable or not a valid name: probed again at the next call.
            pass

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _PORT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return set(answered)


def _is_news(directory: str, unreachable: Sequence[str]) -> bool:
    """Return whether the set of unreachable hosts differs from that of the last call, a second ago."""
    try:
        before = hosts.read_text(os.path.join(directory, _UNREACHABLE))
    except OSError:
        before = ""
    present = _text(unreachable)
    if before == present:
        return False
    with contextlib.suppress(OSError):
        _write_file(directory, _UNREACHABLE, present)
    return True


def paced(directory: str, lines: Sequence[str], delay: float) -> list[str]:
    """Return the lines to print now: without new hosts while hosts leave, and for ``delay`` seconds after that.

    After hosts have left, Horovod's other workers go on without exchanging their states, and a new worker waits for
    that exchange. So a host that joins before they have formed their new ring hangs the job (Horovod issue 3494).
    The first list of a run is returned as it is, and so is every list while the directory cannot be written.

    Raises:
        OSError: The list cannot be remembered. Nothing was held back.
    """
    try:
        printed = set(hosts.read_text(os.path.join(directory, _PRINTED)).split())
    except OSError:
        printed = None
    present = [hosts.name_of(line) for line in lines]
    if printed is None:
        _write_file(directory, _PRINTED, _text(present))
        return list(lines)
    leaves = not printed.issubset(present)
    if leaves:
        _write_file(directory, _LEFT, "")
    try:
        since = time.time() - os.stat(os.path.join(directory, _LEFT)).st_mtime
    except OSError:
        since = delay
    # Below 0, the clock was set back: nobody knows, and waiting could take for ever.
    if delay and (leaves or 0 <= since < delay):
        lines = [line for line in lines if hosts.name_of(line) in printed]
        present = [hosts.name_of(line) for line in lines]
    if printed != set(present):
        _write_file(directory, _PRINTED, _text(present))
    return list(lines)


def _write_file(directory: str, name: str, text: str) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _MAX_NAMES} more" if len(texts) > _MAX_NAMES else ""
    return f"{', '.join(texts[:_MAX_NAMES])}{more}"


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _write(descriptor: int, text: str) -> None:
    """Write without Python's buffers: data that a broken pipe leaves in them fails at exit, with code 120."""
    data = text.encode("utf-8", "surrogateescape")
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    sys.exit(main())
