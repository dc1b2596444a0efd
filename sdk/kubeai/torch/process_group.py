"""The default process group of one round: formed from the round's store, and left again."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.torchrun.member import RoundStoreAddress
from kubeai.torchrun.stores import CannotReach, connect

from .decisions import NotFormed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .round_file import Round

__all__ = ["NotFormed", "form", "form_from_environment", "leave"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05

_hooks: tuple[object, object] | None = None
"""`sys.excepthook` before torch has wrapped it with the prefix of a rank, and since."""


def form(  # noqa: PLR0913 - each is one fact about the group
    entered: Round,
    local_rank: int,
    step: int,
    *,
    backend: str,
    timeout: float,
    seconds: float,
    is_over: Callable[[], bool],
) -> list[int]:
    """Make the default process group that of a round; returns the finished steps of each rank.

    Torch waits for the other ranks where nothing can interrupt it. So all of them say in the store that they are there
    before any begins.

    Args:
        entered: The round.
        local_rank: Added to the round's base rank.
        step: This process's number of finished steps.
        backend: As for `init_process_group`.
        timeout: Of collectives, in seconds.
        seconds: How long to wait for the other ranks.
        is_over: Returns whether a newer round has come.

    Raises:
        NotFormed: The round is not complete after this time, or over.
    """
    rank, size = entered.base_rank + local_rank, entered.world_size
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    try:
        store = dist.PrefixStore(f"kubeai/{entered.number}/", connect(RoundStoreAddress(entered.address, entered.port)))
        store.set(f"step/{rank}", str(step))
        store.add("arrived", 1)
        _wait_for(lambda: store.add("arrived", 0) >= size, seconds, is_over)
        limit = timedelta(seconds=timeout)
        _initialize(lambda: dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit))
        return [int(store.get(f"step/{each}")) for each in range(size)]
    except (CannotReach, RuntimeError) as error:
        raise NotFormed(f"round {entered.number}: {error}") from error


def form_from_environment(backend: str, timeout: float) -> None:
    """Make the default process group that of the variables which any launcher sets."""
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))


def leave() -> None:
    """Destroy the default process group, if there is one. Ranks that wait for this one then fail, too."""
    global _hooks  # noqa: PLW0603 - sys.excepthook is one for the process, too
    if _hooks is not None and sys.excepthook is _hooks[1]:
        sys.excepthook = _hooks[0]  # type: ignore[assignment]
    _hooks = None
    if dist.is_initialized():
        dist.destroy_process_group()


def _initialize(init: Callable[[], object]) -> None:
    """Make the process group. Torch wraps `sys.excepthook` each time; `leave` takes that back."""
    global _hooks  # noqa: PLW0603 - see `leave`
    before = sys.excepthook
    init()
    _hooks = before, sys.excepthook


def _wait_for(holds: Callable[[], bool], seconds: float, is_over: Callable[[], bool]) -> None:
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while not holds():
        if is_over():
            raise NotFormed("a newer round has come")
        if time.monotonic() > end:
            raise NotFormed(f"not all ranks have come within {seconds:g} s")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
