"""Decides what a training process does between two rounds, and whose state all ranks take. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from kubeai.elastic.elastic_agent import is_of_collective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .round_file import Round


class NotFormed(RuntimeError):  # noqa: N818 - the name describes the group
    """The process group of a round was not formed: its store is gone, a process is missing, or a newer round came."""


NO_STATE = -1
"""The step of a process that has trained nothing yet."""


class Move(Enum):
    """The next thing that a process does."""

    ENTER = "enter the newest round"
    WAIT = "wait for a newer round"
    GO_ON = "go on in the present round"
    GIVE_UP = "fail, so that the elastic agents restart their workers"


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an error of a step, or its cause, says that another rank is gone or does not answer.

    That is a failed collective, for which torch has a class of its own only with NCCL: gloo raises RuntimeErrors that
    name its source file.
    """
    causes = (error, error.__cause__)
    return any(isinstance(each, NotFormed) or (each is not None and is_of_collective(each)) for each in causes)


def is_newer(newest: Round | None, own: int) -> bool:
    """Return whether there is a round after `own` that processes enter without a restart."""
    return newest is not None and newest.number > own and newest.in_process


def next_move(newest: Round | None, own: int, *, expired: bool, is_whole: bool) -> Move:
    """Return what a process does that has stopped training in round `own`.

    Args:
        newest: The newest round that this process's member is part of.
        own: The round it is in.
        expired: Whether it has waited long enough.
        is_whole: Whether its process group still works. A round that was announced and never came is then gone on with.
    """
    if is_newer(newest, own):
        return Move.ENTER
    if not expired:
        return Move.WAIT
    is_ended = newest is not None and newest.number > own  # its agent is about to stop this process
    return Move.GO_ON if is_whole and not is_ended else Move.GIVE_UP


def source_of(steps: Sequence[int]) -> int | None:
    """Return the rank whose state all ranks of a round take, None if they all have the same.

    It is the first of those with the most finished steps.

    Args:
        steps: For each rank the number of its finished steps, or `NO_STATE`.
    """
    most = max(steps)
    return None if min(steps) == most else list(steps).index(most)
