"""Says on stderr what a training process does differently, and why. A closed stderr changes nothing."""

from __future__ import annotations

import contextlib
import sys

_said: set[str] = set()


def say(what: str) -> None:
    """Write a line."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"kubeai: {what}\n")


def say_once(what: str) -> None:
    """Write a line unless this process has written it before."""
    if what not in _said:
        _said.add(what)
        say(what)


def say_way(reason: str) -> None:
    """Say once why state goes through a checkpoint at a change."""
    say_once(f"at a change the state goes through a checkpoint: {reason}")
