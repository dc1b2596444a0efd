"""The functions of the library. They belong to the process: one session, started by `init`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .flag import check_alive
from .session import Session
from .values import Directive, DirectiveKind, Notice

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Directive",
    "DirectiveKind",
    "Notice",
    "check_alive",
    "checkpoint_saved",
    "directive",
    "init",
    "notice",
    "on_notice",
    "seconds_left",
    "should_checkpoint",
]

_session = Session()


def init(rank: Callable[[], int | None] | None = None, *, sigterm: bool = False) -> None:
    """Begin to listen for reclaims, in the background. Never raises, never waits for the network.

    Call it after the framework's own init, in every training process; more calls change nothing. Where no supervisor
    is configured or reachable, one line on stderr says so and `check_alive()` stays True.

    Args:
        rank: asked from another thread, about twice a second, which rank this process has now (None = unknown). Not
            needed with torch.distributed, Horovod, or a rank in the environment that does not change. A script that is
            a single process says `lambda: 0`.
        sigterm: take SIGTERM for a LEAVE of this process, then call the handler that was there before. Only the main
            thread can ask for it. Forked children get back the handler that was there before.

    A forked child of a process that has called this shares its flag and is no process of its own: its calls change
    nothing. Call it in each process that trains, after the fork.
    """
    _session.start(rank, sigterm=sigterm)


def notice() -> Notice | None:
    """The notice on this process's own host, else the job's most urgent one; None without any.

    Shown at once, before anything is decided: it may be withdrawn, and it does not say what is to be done.
    """
    held = _session.state.notice
    return None if held is None else held.at(time.monotonic())


def seconds_left() -> float | None:
    """Seconds until the first of the noticed hosts is gone, never below 0; None when nothing says so."""
    return _session.state.seconds_left(time.monotonic())


def directive() -> Directive:
    """What the supervisor has decided for this process and is in effect; RUN of generation 0 before it has spoken."""
    return _session.state.directive


def should_checkpoint() -> bool:
    """Whether a checkpoint is asked for: for each CHECKPOINT, LEAVE or STOP, until `checkpoint_saved` is called."""
    return _session.state.wants_checkpoint


def checkpoint_saved(step: int | None = None) -> None:
    """Say that a checkpoint of the present state is on disk; `step` is the last step it contains. Returns at once.

    From rank 0 after a STOP this lets the job be suspended. Scripts that do not call it are taken to have saved when
    they exit.
    """
    _session.checkpoint_saved(step)


def on_notice(callback: Callable[[Notice], object]) -> None:
    """Call `callback` in a thread of the library's whenever a notice appears, also if that was before this call.

    It should return soon: the next call, and the report of a saved checkpoint, wait for it. What it raises is one
    line on stderr.
    """
    _session.on_notice(callback)
