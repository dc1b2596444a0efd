"""Named points in a service at which it can be made to kill itself, so that every interruption can be tested.

They stand in product code because the instant between two writes cannot be hit from outside. Nothing but a setting arms
one, for one process, from its start on.
"""

import enum
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

_STDERR = 2


@dataclass(slots=True)
class Trigger:
    """Kills this process when it passes the point `name` for the `passes`-th time.

    Counted from the start, or from the first SIGUSR1 on, where `waits`: a start passes many points that a test does not
    mean.
    """

    name: str
    passes: int
    waits: bool = False


_armed: Trigger | None = None


def parse(text: str, names: Iterable[str]) -> Trigger | None:
    """Read `NAME` or `NAME:NTH`, with `@USR1` behind it where that signal arms; None where nothing is set.

    Raises:
        ValueError: There is no such failpoint, or NTH is no number from 1 on.
    """
    if not text:
        return None
    point, _, signalled = text.partition("@")
    if signalled not in ("", "USR1"):
        raise ValueError(f"failpoints are armed by USR1, not by {signalled!r}")
    name, _, nth = point.partition(":")
    if name not in {str(known) for known in names}:
        raise ValueError(f"there is no failpoint {name!r}")
    if nth and not (nth.isascii() and nth.isdecimal() and int(nth) > 0):
        raise ValueError(f"{nth!r} does not count the passings of a failpoint")
    return Trigger(name, int(nth or 1), waits=bool(signalled))


def arm(trigger: Trigger | None) -> None:
    """Arm this trigger and no other, now or once it is signalled; None disarms. Call it from the main thread."""
    if trigger is not None and trigger.waits:
        signal.signal(signal.SIGUSR1, lambda _number, _frame: _set(trigger))
    else:
        _set(trigger)


def failpoint(name: enum.StrEnum) -> None:
    """Pass a point; where that one is armed and due, the process is gone before this returns."""
    if _armed is not None:
        _pass(_armed, name)


def _set(trigger: Trigger | None) -> None:
    global _armed  # noqa: PLW0603 - one switch for the process that it kills
    _armed = trigger


def _pass(armed: Trigger, name: str) -> None:
    if armed.name != name:
        return
    armed.passes -= 1
    if armed.passes == 0:
        os.write(_STDERR, f"failpoint {name}: this process kills itself\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
