"""Finds in the logs of a world where the product's own code has failed, in a way that nobody foresaw."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

_JOB_LOGS = "job-"
"""A training script may end with any error of its own. Its log counts only for errors of programming."""

_TRACEBACK = "Traceback (most recent call last):"
# The frames of a traceback are indented. In the traceback of a group, "|" stands before each line.
_ERROR = re.compile(r"^(?: *\| )?((?:\w+\.)*\w+(?:: .*)?)$")
_PROGRAMMING = re.compile(
    r"\b(NameError|UnboundLocalError|AttributeError|TypeError|ImportError|ModuleNotFoundError|SyntaxError|KeyError"
    r"|IndexError|ZeroDivisionError|RecursionError|AssertionError)\b"
)


def crashes(logs: Path) -> tuple[str, ...]:
    """Return each traceback of our code in the log files of a folder, as the name of the file and the error."""
    return tuple(f"{path.stem}: {error}" for path in sorted(logs.glob("*.log")) for error in _errors(path))


def _errors(path: Path) -> Iterator[str]:
    for error in _tracebacks(path.read_text(encoding="utf-8", errors="replace").splitlines()):
        if not path.name.startswith(_JOB_LOGS) or _PROGRAMMING.search(error):
            yield error


def _tracebacks(lines: list[str]) -> Iterator[str]:
    is_open = False
    for line in lines:
        if logged := _logged(line):
            yield from _tracebacks(logged.splitlines())
        elif _TRACEBACK in line:
            is_open = True
        elif is_open and (found := _ERROR.match(line)):
            is_open = False
            yield found[1]


def _logged(line: str) -> str | None:
    """Return the traceback in a line of a service's log."""
    if not line.startswith("{"):
        return None
    try:
        return str(json.loads(line).get("exception", "")) or None
    except (ValueError, AttributeError):
        return None
