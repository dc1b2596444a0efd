"""All ranks of a round wait for one another in a store, and tell each other their ports, without a process group.

Nothing here needs torch.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable

from .decisions import FIRST_PAUSE, PAUSE_FOR_EACH_RANK, NotFormed

_TOLD_SECONDS = 30.0
_TOLD_PAUSE = 0.02


def await_all(  # noqa: PLR0913 - for whom, how, and how long
    store: Any, key: str, size: int, *, seconds: float, is_over: Callable[[], bool], pause: float = 0.0
) -> None:
    """Count this rank under a key, and wait until all are counted.

    Args:
        store: Of the round.
        key: Under which nobody else counts.
        size: The number of ranks.
        seconds: How long to wait.
        is_over: Returns whether nobody needs to wait any more.
        pause: Between two looks, in seconds, at last. It is longer for many ranks, so they have the same load.

    Raises:
        NotFormed: Not all ranks have come within this time, or it is over.
        RuntimeError: The store cannot be reached.
    """
    end, longest, now = time.monotonic() + seconds, max(pause, PAUSE_FOR_EACH_RANK * size), FIRST_PAUSE
    counted = store.add(key, 1)
    while counted < size:
        if is_over():
            raise NotFormed("a newer round has come")
        if time.monotonic() > end:
            raise NotFormed(f"not all ranks have come within {seconds:g} s")
        time.sleep(now)  # the store wakes nobody when a count grows
        now = min(2 * now, longest)
        counted = store.add(key, 0)


def ports_of_all(
    store: Any, rank: int, size: int, *, is_over: Callable[[], bool]
) -> Callable[[Iterable[int]], set[int]]:
    """Return what tells all ranks some ports of this one, and returns those of all. It raises as `await_all`.

    Args:
        store: With keys for this purpose alone.
        rank: Of this process.
        size: The number of ranks.
        is_over: Returns whether nobody needs the ports any more.
    """

    def told(ports: Iterable[int]) -> set[int]:
        store.set(f"ports/{rank}", " ".join(map(str, ports)))
        await_all(store, "told", size, seconds=_TOLD_SECONDS, is_over=is_over, pause=_TOLD_PAUSE)
        found = store.multi_get([f"ports/{each}" for each in range(size)])
        return {int(port) for ports_of_one in found for port in ports_of_one.decode().split()}

    return told
