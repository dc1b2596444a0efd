"""How much of the time between an event and the change that it causes is said to have been trained in."""

from collections.abc import Iterator, Sequence

import pytest

from tests.torchrun.torchrun_records import Stepped, cost

_SINCE = 1.05
"""When the event was, after ten steps of 0.1 s."""


def _steps(instants: Sequence[float], world: int, first: int = 0) -> Iterator[Stepped]:
    for step, at in enumerate(instants, first):
        yield Stepped(at=at, step=step, rank=0, world=world, host="node1", pid=1, run=0, restarts=0)


def _tenths(first: float, count: int) -> list[float]:
    return [first + 0.1 * step for step in range(count)]


@pytest.mark.parametrize(
    ("later", "trained"),
    [
        (_tenths(1.1, 10), 1.0),
        (_tenths(1.6, 10), 10 / 15),
        ([1.1 + 0.2 * step for step in range(10)], 0.5),
        (_tenths(1.1, 2), None),
    ],
    ids=["at the pace before", "after half a second without a step", "at half the pace", "too few to tell"],
)
def test_the_steps_between_an_event_and_the_pause_are_a_part_of_those_that_fit(
    later: Sequence[float], trained: float | None
) -> None:
    before = [*_tenths(0.1, 10), *later]
    records = [*_steps(before, 8), *_steps(_tenths(before[-1] + 2, 3), 6, first=len(before))]
    found = cost(records, _SINCE)
    assert found.pause == pytest.approx(2)
    assert found.redone == 0
    assert found.trained == (None if trained is None else pytest.approx(trained, abs=0.06))
