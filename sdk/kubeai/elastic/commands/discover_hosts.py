"""kubeai-discover-hosts: prints the operator's hosts that this job may use, without the excluded ones.

Made for Horovod's ``--host-discovery-script``. Horovod calls it every second and kills the whole job when it exits
non-zero, or when a listed host is unreachable for 30 s. So it always exits with 0, and a host that was not in the last
good list is admitted only once its port answers. It does not talk to the supervisor: kubeai-run maintains the files
``hosts`` (the granted ones) and ``exclusions``. An exclusion always wins. Hosts join only some time after others have
left, see `list_changes`.
"""

from __future__ import annotations

# pathlib would make the start of a command that runs every second a third slower.
# ruff: noqa: PTH105, PTH118, PTH123
import argparse
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from kubeai.elastic.version import __version__

from . import hosts, list_changes

if TYPE_CHECKING:
    from typing import Callable, Iterable, NoReturn, Sequence

_DEFAULT_DIRECTORY = "/var/run/kubeai"
_EXCLUSIONS = "exclusions"
_GRANTED = "hosts"
_LAST = "hosts.last"
_UNREACHABLE = "hosts.unreachable"
# All new hosts together: Horovod asks again after 1 s.
_PORT_SECONDS = 0.5
# Longer than the time between two commits of a training script: only then do its workers see that hosts have left.
_JOIN_DELAY_VARIABLE = "KUBEAI_JOIN_DELAY"
_JOIN_DELAY_SECONDS = 5.0
_MAX_NAMES = 5
_STDOUT, _STDERR = 1, 2


class _UsageError(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would exit with code 2."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the hosts and return 0. Problems are reported in one line on stderr."""
    problems: list[str] = []
    directory = os.environ.get("KUBEAI_DIR") or _DEFAULT_DIRECTORY
    lines = _paced(directory, _answer(directory, sys.argv[1:] if argv is None else argv, problems), problems)
    try:
        _write(_STDOUT, _text(lines))
    except OSError as error:
        problems.append(f"cannot write the list: {error.strerror}")
    if problems:
        with contextlib.suppress(OSError):
            _write(_STDERR, " ".join(f"kubeai-discover-hosts: {'; '.join(problems)}".split()) + "\n")
    return 0


def _answer(directory: str, argv: Sequence[str], problems: list[str]) -> list[str]:
    obstacle = _obstacle_check(directory, problems)
    last = _last_good(directory)
    try:
        options = _options(argv)
        listed = hosts.source(options.hosts_file, options.hosts_script, os.environ).read()
        admitted = _admitted(listed, last, obstacle, options.port)
    except (Exception, KeyboardInterrupt) as problem:  # noqa: BLE001 - any exit code but 0 would kill the job.
        problems.append(f"{problem or type(problem).__name__}: using the last good list")
        return _chosen(last, obstacle)
    if admitted != last:
        _keep(directory, admitted, problems)
    chosen = _chosen(admitted, obstacle)
    unreachable = [name for name in listed if name not in admitted and not obstacle(name)]
    is_news = _is_news(directory, unreachable)
    if not chosen:
        problems.append(_why_none(listed, obstacle, options.port))
    elif is_news and unreachable:
        problems.append(f"left out, as they do not answer on port {options.port}: {_some(unreachable)}")
    return chosen


def _paced(directory: str, lines: list[str], problems: list[str]) -> list[str]:
    try:
        return list_changes.paced(directory, lines, _join_delay(problems))
    except OSError as error:
        problems.append(f"cannot remember the list: {error.strerror}")
        return lines


def _join_delay(problems: list[str]) -> float:
    """How many seconds after a leave hosts may join. From the environment alone, so that it also holds for bad options.

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
    parser = _Parser(prog="kubeai-discover-hosts", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
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
    options.port = _port(options.port or os.environ.get(hosts.PORT_VARIABLE) or str(hosts.DEFAULT_PORT))
    return options


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > hosts.HIGHEST_PORT:
        raise _UsageError(f"port {text!r} is not a number from 0 to {hosts.HIGHEST_PORT}")
    return int(text)


def _last_good(directory: str) -> dict[str, str]:
    try:
        return hosts.parse(hosts.read_text(os.path.join(directory, _LAST)))
    except OSError:
        # No readable list: every host is new.
        return {}


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
    may
    not be used. A host that left the operator's list is forgotten and probed again when it returns.
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


def _keep(directory: str, admitted: dict[str, str], problems: list[str]) -> None:
    path = os.path.join(directory, _LAST)
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(_text(admitted.values()))
        os.replace(temporary, path)
    except OSError as error:
        problems.append(f"cannot save the last good list: {error.strerror}")


def _chosen(admitted: dict[str, str], obstacle: Callable[[str], str]) -> list[str]:
    return [line for name, line in admitted.items() if not obstacle(name)]


def _why_none(listed: dict[str, str], obstacle: Callable[[str], str], port: int) -> str:
    """Explain why no host can be used, because Horovod would wait for one silently."""
    if not listed:
        return "the operator's host list is empty"
    reasons = [f"{name} ({obstacle(name) or f'does not answer on port {port}'})" for name in listed]
    return f"no host can be used: {_some(reasons)}"


def _is_news(directory: str, unreachable: Sequence[str]) -> bool:
    """Return whether other hosts are unreachable than at the last call, which was a second ago."""
    path = os.path.join(directory, _UNREACHABLE)
    try:
        before = hosts.read_text(path)
    except OSError:
        before = ""
    present = _text(unreachable)
    if before == present:
        return False
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(present)
    return True


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
