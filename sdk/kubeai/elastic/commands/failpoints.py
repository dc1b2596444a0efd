"""Defines failpoints at which kubeai-run kills itself, so that tests can interrupt it anywhere.

They are in product code because the instant between two writes cannot be hit from outside. Only the variable
KUBEAI_RUN_FAILPOINT=NAME[:NTH] arms one, for one process, from its start. The command does not inherit it.
"""

from __future__ import annotations

import os
import signal
from enum import Enum
from typing import MutableMapping

VARIABLE = "KUBEAI_RUN_FAILPOINT"
_STDERR = 2


class UnknownFailpoint(ValueError):  # noqa: N818 - the name describes the text.
    """The variable names no failpoint, or NTH is not a positive number."""


class RunFailpoint(Enum):
    """All failpoints: between any two writes to the identity directory, and around every action and report."""

    HELLO_SENDING = "hello.sending"
    HELLO_ANSWERED = "hello.answered"
    HOSTS_NARROWED = "hosts.narrowed"
    EXCLUSIONS_WRITTEN = "exclusions.written"
    HOSTS_WRITTEN = "hosts.written"
    TOKEN_REMOVED = "token.removed"  # noqa: S105 - a point in the code
    LAST_HOSTS_REMOVED = "last_hosts.removed"
    RUN_WRITTEN = "run.written"
    JOB_WRITTEN = "job.written"
    ADDRESS_WRITTEN = "address.written"
    TOKEN_GIVING = "token.giving"  # noqa: S105 - a point in the code
    TOKEN_GIVEN = "token.given"  # noqa: S105 - a point in the code
    ORDER_APPLIED = "order.applied"
    COMMAND_STARTING = "command.starting"
    COMMAND_STARTED = "command.started"
    COMMAND_ENDING = "command.ending"
    COMMAND_ASKED_TO_END = "command.asked_to_end"
    COMMAND_KILLED = "command.killed"
    COMMAND_ENDED = "command.ended"
    REPORT_SENDING = "report.sending"
    REPORT_ANSWERED = "report.answered"
    FINISHING = "finishing"
    FINISHED = "finished"


_passes_left: dict[RunFailpoint, int] = {}  # of the armed failpoint


def arm(environ: MutableMapping[str, str]) -> None:
    """Remove the variable from the environment and arm the failpoint that it names.

    Raises:
        UnknownFailpoint: There is no such failpoint, or NTH is not a positive number.
    """
    text = environ.pop(VARIABLE, "")
    name, _, nth = text.partition(":")
    try:
        at = RunFailpoint(name) if text else None
        passes = int(nth or 1)
    except ValueError as error:
        raise UnknownFailpoint(f"{VARIABLE}: {error}") from error
    if passes < 1:
        raise UnknownFailpoint(f"{VARIABLE}: {nth} is not a positive number")
    _passes_left.clear()
    if at is not None:
        _passes_left[at] = passes


def failpoint(at: RunFailpoint) -> None:
    """Pass a failpoint. If it is armed and due, this kills the process."""
    if at not in _passes_left:
        return
    _passes_left[at] -= 1
    if _passes_left[at] == 0:
        os.write(_STDERR, f"failpoint {at.value}: this process kills itself\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
