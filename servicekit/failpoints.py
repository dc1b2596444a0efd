"""Kills a service at a named point, so that every interruption can be tested.

The points are in product code because nobody can hit the instant between two writes from outside. Only a setting arms
one, for one process, from its start.
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

    Passes count from the start, or from SIGUSR1 on where `armed_by_signal` is set: a start passes many points that a
    test does not mean.
    """

    name: str
    passes: int
    armed_by_signal: bool = False


_armed: Trigger | None = None


def parse(text: str, names: Iterable[str]) -> Trigger | None:
    """Parses `NAME` or `NAME:NTH`, followed by `@USR1` if that signal arms it; None for an empty text.

    Raises:
        ValueError: There is no such failpoint, or NTH is not a number from 1.
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
        raise ValueError(f"failpoint {name!r}: {nth!r} is not a number from 1")
    return Trigger(name, int(nth or 1), armed_by_signal=bool(signalled))


def arm(trigger: Trigger | None) -> None:
    """Arms this trigger and no other, now or on its signal; None disarms. To be called in the main thread."""

    def start(*_signal: object) -> None:
        global _armed  # noqa: PLW0603 - one switch for the process that it kills
        _armed = trigger

    if trigger is not None and trigger.armed_by_signal:
        signal.signal(signal.SIGUSR1, start)
    else:
        start()


def failpoint(name: enum.StrEnum) -> None:
    """Passes a failpoint. If it is armed and due, this kills the process and does not return."""
    armed = _armed
    if armed is None or armed.name != name:
        return
    armed.passes -= 1
    if armed.passes == 0:
        os.write(_STDERR, f"failpoint {name}: this process kills itself\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
