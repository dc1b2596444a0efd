"""The public functions of the library. They share one session per process, which `init` starts."""

from __future__ import annotations

import inspect
import math
import operator
import time
from typing import TYPE_CHECKING

from .gates import should_checkpoint, should_stop
from .messages import Directive, DirectiveKind, Notice, described
from .monitor import check_alive
from .session import ProcessSession

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, Union

    _Given = Union[Callable[[], "int | None"], int, None]

__all__ = [
    "Directive",
    "DirectiveKind",
    "Notice",
    "check_alive",
    "checkpoint_failed",
    "checkpoint_saved",
    "directive",
    "exit_for_resume",
    "init",
    "notice",
    "on_notice",
    "resumed",
    "seconds_left",
    "should_checkpoint",
    "should_stop",
    "stop_is_agreed",
]

_RESUME = 75  # EX_TEMPFAIL of sysexits.h: not a failure of the program, try again

_session = ProcessSession()


def init(
    rank: _Given = None,
    *,
    sigterm: bool = False,
    collective: bool = False,
    world_size: _Given = None,
) -> None:
    """Start listening for reclaims in the background. Never waits for the network, and raises nothing but TypeError.

    Call it in every training process, after the framework's own init. Further calls have no effect. If no supervisor is
    configured or reachable, it prints one line on stderr and `check_alive()` stays True.

    A child forked from a process that has called this shares its flag. Calls in the child have no effect. Call it in
    each process that trains, after the fork.

    Args:
        rank: The rank of this process, or a function that returns the present one, None if it is unknown. The function
            is called from another thread, about twice a second. It is not needed with torch.distributed, Horovod, JAX,
            or a rank in the environment that does not change. A script with a single process passes 0.
        sigterm: Treat SIGTERM as a LEAVE of this process, then call the previous handler. This works only in the main
            thread. Forked children get the previous handler back.
        collective: A checkpoint needs all ranks, as with sharded checkpoints: one that saves alone hangs. Then
            `should_stop(step)` and `should_checkpoint(step)` are True only at a step that all ranks have agreed on.
        world_size: The number of ranks, or a function that returns the present one. The rules of `rank` apply.

    Raises:
        TypeError: `rank` or `world_size` is neither a number nor a function without arguments.
    """
    _session.start(_function("rank", rank), _function("world_size", world_size), sigterm=sigterm, collective=collective)


def notice() -> Notice | None:
    """Return the notice for this process's own host, otherwise the job's most urgent one; None if there is none.

    A notice is available before the supervisor has decided anything. It may be withdrawn, and it does not say what to
    do.
    """
    return _session.monitor.state.notice_at(time.monotonic())


def seconds_left() -> float | None:
    """Return the seconds until the first noticed host is gone, at least 0; None if that is unknown."""
    return _session.monitor.state.seconds_left(time.monotonic())


def directive() -> Directive:
    """Return the directive that is in effect; RUN with generation 0 until the supervisor has sent one."""
    return _session.monitor.state.directive


def stop_is_agreed() -> bool:
    """Return whether this process stops at a step at which all ranks stop, so that they can save together."""
    state = _session.monitor.state
    return state.is_agreed and state.directive.is_final


def checkpoint_saved(step: int | None = None, *, seconds: float | None = None) -> None:
    """Report that a checkpoint of the present state is complete. Returns at once.

    After a STOP, this report from rank 0 lets the job be suspended; after one at an agreed step, the reports of all
    ranks do. Only a checkpoint of the step at which the process stops counts, so a save in the background that
    completes late may be reported too. A script that never calls it is assumed to have saved when it exits, unless an
    exception ends it.

    Args:
        step: The number of finished steps in the checkpoint. None: those of the present state.
        seconds: How long it took. By default, the time since it was requested.
    """
    try:
        duration = None if seconds is None else float(seconds)
    except (TypeError, ValueError):
        duration = None
    if duration is not None and not (math.isfinite(duration) and duration >= 0):
        duration = None
    if _session.is_child or _session.monitor.checkpoint_saved(_whole(step), duration):
        return
    _session.stderr.once(
        "another step",
        f"the checkpoint of step {step} is not the one that is asked for: the job waits for that of the step at which "
        "this process stops",
    )


def checkpoint_failed(error: object, step: int | None = None) -> None:
    """Report that a checkpoint could not be saved. Returns at once.

    After a STOP, the job then shows the error, and that it will resume from an earlier checkpoint. `checkpoint_saved`
    takes it back: until the process exits, it may try again.

    Args:
        error: Why, an exception or a text.
        step: The number of finished steps in the checkpoint. None: those of the present state.
    """
    if not _session.is_child:
        _session.monitor.checkpoint_failed(_whole(step), described(error))


def state_kept(step: int, *, seconds: float) -> None:
    """Report that the state of the agreed step is in the memory of hosts that stay. For the package's own loops.

    It answers a STOP as a checkpoint does, and is none: the supervisor does not count on it after the job has resumed.

    Args:
        step: The number of finished steps.
        seconds: How long it took.
    """
    if not _session.is_child:
        _session.monitor.state_kept(step, seconds)


def host_leaves() -> bool:
    """Return whether this process's own host has a notice. For the package's own loops."""
    known = _session.monitor.state.notice
    return known is not None and known.own


def max_wait() -> float | None:
    """Return how long the job waits to be resumed after a stop, in seconds; None for any time, or if it is not known.

    For the package's own loops.
    """
    return _session.monitor.state.max_wait


def may_save_again() -> bool:
    """Return whether a save that has failed may be repeated in this process alone. For the package's own loops."""
    member = _session.monitor.member
    return not member.collective and member.rank in (0, None)


def resumed(step: int) -> None:
    """Report the step that this run starts from. Returns at once.

    Call it after a checkpoint was loaded, or with 0 when there is none.

    Args:
        step: The number of finished steps in the loaded checkpoint.

    Raises:
        TypeError: `step` is no integer.
        ValueError: `step` is below 0.
    """
    if operator.index(step) < 0:
        raise ValueError(f"step is {step}: no number of finished steps")
    if not _session.is_child:
        _session.monitor.resumed(operator.index(step))


def exit_for_resume() -> NoReturn:
    """End the process after `should_stop` was True, so that the job is resumed later.

    Raises SystemExit with code 75, which runs `finally` blocks and `atexit` functions. Code 0 would end the whole job.
    """
    raise SystemExit(_RESUME)


def on_notice(callback: Callable[[Notice], object]) -> None:
    """Call `callback` whenever a notice appears, including one that appeared before this call.

    The callback runs in a thread of the library. It should return quickly, because later callbacks and checkpoint
    reports wait for it. An exception that it raises is printed as one line on stderr.
    """
    _session.callbacks.append((callback, set()))


def _whole(step: int | None) -> int | None:
    """Convert a step to int, also from numpy; None if it is no integer."""
    try:
        return None if step is None else operator.index(step)
    except TypeError:
        return None


def _function(name: str, given: _Given) -> Callable[[], int | None] | None:
    """Return `given` as a function. Check it now, because nothing else would show a mistake before a reclaim."""
    if given is None:
        return None
    if callable(given):
        require_call(name, given)
        return given
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if number < 0 or isinstance(given, bool):
        raise TypeError(f"{name} is {given!r}: neither a number nor a function that returns one")
    return lambda: number


def require_call(name: str, function: Callable[..., object], *arguments: object) -> None:
    """Raise TypeError unless a function can be called with these arguments, as far as its signature is known."""
    if not callable(function):
        raise TypeError(f"{name} is {function!r}: not a function")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # some functions of C have none
    try:
        signature.bind(*arguments)
    except TypeError as error:
        call = f"{name}({', '.join(map(str, arguments))})"
        raise TypeError(f"{call} is not possible: {error}. Its parameters are {signature}") from None
