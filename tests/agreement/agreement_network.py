"""Simulated time, and a network that loses, delays, repeats and reorders messages between ranks and supervisor."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

_POST_TIMEOUT_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 5.0
_NOTICED_SECONDS = 0.5


class Timeline:
    """Runs what is due, one thing after the other. It stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def monotonic(self) -> float:
        return self.now

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), do))

    def run(self, until: float, is_over: Callable[[], bool]) -> None:
        while self._due and self._due[0][0] <= until and not is_over():
            self.now, _, do = heapq.heappop(self._due)
            do()
        if not is_over():
            self.now = until


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How the network behaves: seconds for one way, and the share of posts that go wrong in some way."""

    slowest: float = 0.02
    faulty: float = 0.0
    seed: int = 0


class Network:
    def __init__(self, timeline: Timeline, weather: Weather) -> None:
        self.timeline = timeline
        self._weather = weather
        self.random = Random(weather.seed)  # noqa: S311 - the same faults in each run

    def delay(self) -> float:
        return self.random.uniform(0.0005, self._weather.slowest)

    def post(self, arrive: Callable[[], bool], answered: Callable[[bool], None]) -> None:
        """Carries a request and its answer. `arrive` says whether somebody was there; one that is slow arrives late."""
        after, there, back = self.timeline.after, self.delay(), self.delay()
        if self.random.random() >= self._weather.faulty:
            after(there, lambda: after(back, _with(answered, arrive())))
            return
        match self.random.choice(["lost", "answer lost", "repeated", "late"]):
            case "lost":
                after(there, lambda: answered(False))  # noqa: FBT003 - the result
            case "answer lost":
                after(there, lambda: after(back, _with(answered, arrive() and False)))
            case "repeated":
                after(there, lambda: after(back, _with(answered, arrive())))
                after(self.random.uniform(0.0, 3.0), lambda: _ignored(arrive()))
            case _:
                after(self.random.uniform(1.0, 2 * _POST_TIMEOUT_SECONDS), lambda: _ignored(arrive()))
                after(_POST_TIMEOUT_SECONDS, lambda: answered(False))  # noqa: FBT003 - the result

    def pause(self, attempt: int) -> float:
        """The SDK's pause before another attempt: full jitter."""
        return self.random.uniform(0.0, min(_MAX_PAUSE_SECONDS, 0.1 * 2**attempt))


class DelayedStream:
    """A stream to one rank: what is sent arrives in order until it breaks; both ends notice that a little later."""

    def __init__(
        self, network: Network, on_line: Callable[[Mapping[str, Any]], None], on_lost: Callable[[], None]
    ) -> None:
        self._network = network
        self._on_line = on_line
        self._on_lost = on_lost
        self._last_at = 0.0
        self.is_open = True
        self.on_detached: Callable[[], None] = lambda: None

    def accept(self, on_open: Callable[[], None]) -> None:
        """Answers the hello; what is sent later arrives later."""
        self._in_order(on_open)

    def send(self, message: Mapping[str, Any]) -> None:
        self._in_order(lambda: self._on_line(message))

    def cut(self) -> None:
        if self.is_open:
            self.is_open = False
            after, random = self._network.timeline.after, self._network.random
            after(random.uniform(0.0, _NOTICED_SECONDS), self._on_lost)
            after(random.uniform(0.0, 4 * _NOTICED_SECONDS), self._detach)

    def _detach(self) -> None:
        self.on_detached()

    def _in_order(self, arrive: Callable[[], None]) -> None:
        now = self._network.timeline.now
        self._last_at = max(self._last_at, now + self._network.delay())
        self._network.timeline.after(self._last_at - now, lambda: arrive() if self.is_open else None)


def _with(answered: Callable[[bool], None], result: bool) -> Callable[[], None]:  # noqa: FBT001 - the result
    return lambda: answered(result)


def _ignored(_: bool) -> None:  # noqa: FBT001 - the result
    return None
