"""One piece of work at a time for each job, always the latest; jobs do not wait for each other."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from servicekit.wakeup import Wakeup
from supervisor.domain.ids import JobName

T = TypeVar("T")

Work = Callable[[T], Awaitable[float | None]]
"""Returns after how many seconds it is to be done once more, unless there is later work; None: not again."""


class Latest(Generic[T]):
    """`put` what is to be done; `run` does it.

    Args:
        work: Does one piece; must not raise.
    """

    def __init__(self, work: Work[T]) -> None:
        self._work = work
        self._next: dict[JobName, T] = {}
        self._lanes: dict[JobName, Wakeup] = {}
        self._wakeup = Wakeup()

    def put(self, name: JobName, todo: T) -> None:
        """Does that for the job, after what is being done for it now and instead of what waits."""
        self._next[name] = todo
        (self._lanes.get(name) or self._wakeup).set()

    async def run(self) -> None:
        """Root task."""
        async with asyncio.TaskGroup() as group:
            while True:
                for name in self._next.keys() - self._lanes.keys():
                    self._lanes[name] = Wakeup()
                    group.create_task(self._lane(name), name=f"trainingjob {name}")
                await self._wakeup.wait()

    async def _lane(self, name: JobName) -> None:
        try:
            while name in self._next:
                todo = self._next.pop(name)
                again = await self._work(todo)
                if again is not None and name not in self._next:
                    await self._lanes[name].wait(again)
                    self._next.setdefault(name, todo)
        finally:
            del self._lanes[name]
