"""In which order a run's tests are: long ones first, and as many of them for each process."""

from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def dealt(long: Sequence[T], others: Sequence[T], processes: int) -> list[T]:
    """The tests as `--dist worksteal` cuts them: each process's part begins with its share of the long ones.

    Both stay together as they were: tests of one folder share an API server or a whole control plane, which each
    process that has one of them starts and keeps. A process that has nothing left takes over what others have not
    begun with, which had better be short.
    """
    order: list[T] = []
    short = iter(others)
    for number in range(processes):
        first = long[len(long) * number // processes : len(long) * (number + 1) // processes]
        size = (len(long) + len(others) - len(order)) // (processes - number)
        order += [*first, *islice(short, max(0, size - len(first)))]
    return [*order, *short]
