"""A clock that stands still until the test moves it."""

from servicekit.clock import Clock


class HandClock(Clock):
    """A clock that the test sets: `system` is the system's clock in Unix seconds, `steady` the monotonic instant."""

    def __init__(self, system: float = 0.0, steady: float = 1000.0) -> None:
        self.system = system
        self.steady = steady
        super().__init__()

    def wall(self) -> float:
        return self.system

    def monotonic(self) -> float:
        return self.steady
