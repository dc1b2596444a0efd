"""The public functions of the library. They share one session per process, which `init` starts."""

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
    """Start listening for reclaims in the background. Never raises and never waits for the network.

    Call it in every training process, after the framework's own init. Further calls have no effect. If no supervisor is
    configured or reachable, it prints one line on stderr and `check_alive()` stays True.

    A child forked from a process that has called this shares its flag. Calls in the child have no effect. Call it in
    each
    process that trains, after the fork.

    Args:
        rank: Returns the present rank of this process, or None if it is unknown. It is called from another thread,
            about twice a second. It is not needed with torch.distributed, Horovod, or a rank in the environment that
            does not change. A script with a single process passes `lambda: 0`.
        sigterm: Treat SIGTERM as a LEAVE of this process, then call the previous handler. This works only in the main
            thread. Forked children get the previous handler back.
    """
    _session.start(rank, sigterm=sigterm)


def notice() -> Notice | None:
    """Return the notice for this process's own host, otherwise the job's most urgent one; None if there is none.

    A notice is available before the supervisor has decided anything. It may be withdrawn, and it does not say what to
    do.
    """
    held = _session.state.notice
    return None if held is None else held.at(time.monotonic())


def seconds_left() -> float | None:
    """Return the seconds until the first noticed host is gone, at least 0; None if that is unknown."""
    return _session.state.seconds_left(time.monotonic())


def directive() -> Directive:
    """Return the directive that is in effect; RUN with generation 0 until the supervisor has sent one."""
    return _session.state.directive


def should_checkpoint() -> bool:
    """Return whether a checkpoint is requested: after each CHECKPOINT, LEAVE or STOP, until `checkpoint_saved`."""
    return _session.state.wants_checkpoint


def checkpoint_saved(step: int | None = None) -> None:
    """Report that a checkpoint of the present state is on disk. Returns at once.

    After a STOP, this report from rank 0 lets the job be suspended. A script that never calls it is assumed to have
    saved
    when it exits.

    Args:
        step: The last step in the checkpoint.
    """
    _session.checkpoint_saved(step)


def on_notice(callback: Callable[[Notice], object]) -> None:
    """Call `callback` whenever a notice appears, including one that appeared before this call.

    The callback runs in a thread of the library. It should return quickly, because later callbacks and checkpoint
    reports
    wait for it. An exception that it raises is printed as one line on stderr.
    """
    _session.on_notice(callback)
