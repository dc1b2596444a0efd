"""How long clients wait before they try again."""

import random
from collections import Counter

from servicekit.faults import Backoff, ReconnectDelays
from tests.testkit.clocks import HandClock


def test_delays_are_drawn_from_a_range_that_doubles_up_to_its_bound() -> None:
    """Full jitter: anything between nothing and the bound, which starts again after a reset."""
    bounds = [0.1, 0.2, 0.4, 0.5, 0.5]
    drawn: list[list[float]] = [[] for _ in bounds]
    backoff = Backoff(0.1, 0.5)
    for _ in range(500):
        for delays in drawn:
            delays.append(backoff.next())
        backoff.reset()
    for delays, bound in zip(drawn, bounds, strict=True):
        assert 0.0 <= min(delays) < bound * 0.1
        assert bound * 0.9 < max(delays) <= bound


class _Longest(random.Random):
    """Draws the longest delay each time."""

    def uniform(self, a: float, b: float) -> float:
        del a
        return b


def test_a_client_asks_a_server_that_has_just_gone_more_often_than_one_that_stays_away() -> None:
    """The bound doubles to a second, and is a quarter of the absence later; a server that is there begins anew."""
    clock = HandClock(steady=0.0)
    backoff = ReconnectDelays(Backoff(0.1, 5.0, _Longest()), clock)
    assert [backoff.next() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    bounds = dict[float, float]()
    for clock.steady in (3.0, 4.0, 8.0, 20.0, 3600.0):
        bounds[clock.steady] = backoff.next()
    assert bounds == {3.0: 1.0, 4.0: 1.0, 8.0: 2.0, 20.0: 5.0, 3600.0: 5.0}
    backoff.reset()
    assert [backoff.next() for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]


def test_clients_that_lose_a_server_at_once_call_its_successor_within_a_second_and_not_together() -> None:
    """Of 1,000 clients whose server is back after three seconds, no tenth of a second gets more than a quarter."""
    back = [_back(seed, after=3.0) for seed in range(1000)]
    assert all(0.0 <= each <= 1.0 for each in back)
    tenths = Counter(int(each * 10) for each in back)
    assert max(tenths.values()) < 250
    assert len(tenths) == 10


def _back(seed: int, after: float) -> float:
    """Return when a client calls first after its server is back, in seconds since then."""
    clock = HandClock(steady=0.0)
    backoff = ReconnectDelays(Backoff(0.1, 5.0, random.Random(seed)), clock)  # noqa: S311 - a test's source
    while clock.steady < after:
        clock.steady += backoff.next()
    return clock.steady - after
