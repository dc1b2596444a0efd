"""Defines `should_stop`, `should_checkpoint` and `should_regroup`. They share the step, and each has a gate.

A gate is the lowest step at which a call asks the session. `should_stop` serves two purposes, so its gate is the lower
one of two.

A call writes the step, compares it with the gate and returns. Below the gate there is no lock and nothing to wait for.
The listener sets a gate first and reads the step afterwards, so one of the two threads sees the other.

The values are module variables, because attributes of an object would cost each call another look-up. A forked child
has its own copy of them, and so does not disturb its parent's step.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING

from .messages import StepPurpose

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER, ALWAYS = sys.maxsize, -sys.maxsize

_step: int | None = None
# The first call of each function asks, and so tells that the script uses it.
_stop_gate = ALWAYS
_checkpoint_gate = ALWAYS
_regroup_gate = ALWAYS
_gates = dict.fromkeys(StepPurpose, ALWAYS)
_gates[StepPurpose.RENDEZVOUS] = NEVER  # asked for together with a stop


def should_stop(step: int) -> bool:
    """Return whether to save a checkpoint and exit now. Call it once after each step, in every rank.

    Where all processes of the job call it, they agree on a step at which it becomes True in all of them, so that they
    can save together. Otherwise it is True when `check_alive()` is False, except with `init(collective=True)`: then it
    is True at an agreed step only. Once it is True it stays True.

    Before the agreed step it never waits. At that step it waits for at most a few seconds, if the supervisor has not
    yet said whether the agreement stands. Raises TypeError at the first call if `step` is no integer.

    Args:
        step: The number of finished steps, the same on every rank. It grows across restarts.
    """
    global _step  # noqa: PLW0603 - see above
    _step = step
    if step < _stop_gate:
        return False
    return _arrive(StepPurpose.STOP, step)


def should_checkpoint(step: int | None = None) -> bool:
    """Return whether a checkpoint is requested. The training goes on after it.

    With a step, which is that of `should_stop`, it is True once for each request, in all ranks at the same step. Where
    not all processes of the job call it like that, and without a step, it is True after each CHECKPOINT, LEAVE or STOP
    until `checkpoint_saved` is called.
    """
    if step is None:
        return _wants_checkpoint()
    global _step  # noqa: PLW0603 - see above
    _step = step
    if step < _checkpoint_gate:
        return False
    return _arrive(StepPurpose.CHECKPOINT, step)


def should_regroup(step: int) -> bool:
    """Return whether to pause now, because the next round begins without a restart. See `regroup`."""
    global _step  # noqa: PLW0603 - see above
    _step = step
    if step < _regroup_gate:
        return False
    return _arrive(StepPurpose.REGROUP, step)


def finished_steps() -> int | None:
    """Return the step of the last call; None before the first one."""
    return None if _step is None else operator.index(_step)


def lower(purpose: StepPurpose, step: int) -> None:
    """Lower the gate to `step`: calls from that step on ask the session. A gate that is already lower stays."""
    place(purpose, min(step, _gates[purpose]))


def place(purpose: StepPurpose, step: int) -> None:
    """Set the gate: only calls from `step` on ask the session, or all calls (ALWAYS), or none (NEVER).

    It takes no lock, because a signal handler calls it.
    """
    global _stop_gate, _checkpoint_gate, _regroup_gate  # noqa: PLW0603 - see above
    _gates[purpose] = step
    _stop_gate = min(_gates[StepPurpose.STOP], _gates[StepPurpose.RENDEZVOUS])
    _checkpoint_gate = _gates[StepPurpose.CHECKPOINT]
    _regroup_gate = _gates[StepPurpose.REGROUP]


def connect(arrive: Callable[[StepPurpose, int], bool], wants_checkpoint: Callable[[], bool]) -> None:
    """Set the function that a call at a gate asks, and the one that answers `should_checkpoint()` without a step."""
    global _arrive, _wants_checkpoint
    _arrive, _wants_checkpoint = arrive, wants_checkpoint


def abandon_in_child(check_alive: Callable[[], bool]) -> None:
    """Disconnect a forked child: it sees its parent's flag, agrees to nothing and waits for nothing."""

    def arrive_alone(purpose: StepPurpose, _: int) -> bool:
        return purpose is StepPurpose.STOP and not check_alive()

    connect(arrive_alone, _wants_checkpoint)
    for purpose in StepPurpose:
        place(purpose, NEVER)
    place(StepPurpose.STOP, ALWAYS)


def _false(*_: object) -> bool:
    return False


# Until a session connects them.
_arrive: Callable[[StepPurpose, int], bool] = _false
_wants_checkpoint: Callable[[], bool] = _false
