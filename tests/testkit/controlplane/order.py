"""Orders the tests of a run: long ones first, spread evenly over the processes."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def dealt(long: Sequence[T], others: Sequence[T], processes: int, module: Callable[[T], object]) -> list[T]:
    """The tests as `--dist worksteal` cuts them: each process's part begins with its share of the long ones.

    Both stay together as they were: tests of one folder share an API server or a whole control plane, which each
    process that has one of them starts and keeps. The long ones of one module stay in one process, because others would
    do again what the module does once. A process that has nothing left takes over what others have not begun with,
    which had better be short.
    """
    order: list[T] = []
    short = iter(others)
    begin = 0
    for number in range(processes):
        end = max(begin, len(long) * (number + 1) // processes)
        while 0 < end < len(long) and module(long[end]) == module(long[end - 1]):
            end += 1
        size = (len(long) + len(others) - len(order)) // (processes - number)
        order += [*long[begin:end], *islice(short, max(0, size - (end - begin)))]
        begin = end
    return [*order, *short]
