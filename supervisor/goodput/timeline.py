"""Simulated time: what is due is done in order, and nothing passes in between."""

import heapq
from collections.abc import Callable
from itertools import count

BEGIN = 1_000_000.0
"""Unix seconds. Not 0, because no clock shows that."""


class CapacityTimeline:
    """Calls in the order of their instants; those of one instant in the order in which they were added."""

    def __init__(self) -> None:
        self.now = BEGIN
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, instant: float, do: Callable[[], None]) -> None:
        """Calls `do` at an instant, at once if that has passed."""
        heapq.heappush(self._due, (max(self.now, instant), next(self._order), do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self.at(self.now + seconds, do)

    def run(self, seconds: float, advance: Callable[[], None], settle: Callable[[], None]) -> None:
        """Lets so much time pass. `advance` is called before all that is due at an instant, and `settle` after it."""
        until = BEGIN + seconds
        while self._due and self._due[0][0] < until:
            self.now = self._due[0][0]
            advance()
            while self._due and self._due[0][0] == self.now:
                heapq.heappop(self._due)[2]()
            settle()
        self.now = until
        advance()
