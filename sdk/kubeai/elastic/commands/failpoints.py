"""Named points at which kubeai-run can be made to kill itself, so that every interruption can be tested.

They stand in product code because the instant between two writes cannot be hit from outside. Nothing but the variable
KUBEAI_RUN_FAILPOINT=NAME[:NTH] arms one, for one process, from its start on; the command does not inherit it.
"""

from __future__ import annotations

import os
import signal
from enum import Enum
from typing import MutableMapping

VARIABLE = "KUBEAI_RUN_FAILPOINT"
_STDERR = 2


class UnknownFailpoint(ValueError):  # noqa: N818 - named for what the text is.
    """The variable names no failpoint, or no number of passings."""


class At(Enum):
    """Every failpoint: between any two writes to the identity directory, and around every action and report."""

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


class _Switch:
    """At most one point, and how many passings are left."""

    def __init__(self) -> None:
        self.at: At | None = None
        self.passes = 0


_switch = _Switch()


def arm(environ: MutableMapping[str, str]) -> None:
    """Take the variable out of the environment and arm what it names.

    Raises:
        UnknownFailpoint: there is no such failpoint, or NTH is no number from 1 on.
    """
    text = environ.pop(VARIABLE, "")
    name, _, nth = text.partition(":")
    try:
        at = At(name) if text else None
        passes = int(nth or 1)
    except ValueError as error:
        raise UnknownFailpoint(f"{VARIABLE}: {error}") from error
    if passes < 1:
        raise UnknownFailpoint(f"{VARIABLE}: {nth} does not count the passings of a failpoint")
    _switch.at, _switch.passes = at, passes


def failpoint(at: At) -> None:
    """Pass a point; where that one is armed and due, the process is gone before this returns."""
    if _switch.at is not None:
        _pass(at)


def _pass(at: At) -> None:
    if _switch.at is not at:
        return
    _switch.passes -= 1
    if _switch.passes == 0:
        os.write(_STDERR, f"failpoint {at.value}: this process kills itself\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
