import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import pytest

from benchmarks.deciding import granting, planning
from supervisor.domain.job import Phase

_MOST = 2.2


def calls(function: Callable[[], object]) -> int:
    """How many functions it calls, those of C included."""
    count = 0

    def see(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_a_job_that_has_lost_half_of_its_workers_goes_on_without_them() -> None:
    decision = planning(8)().decision
    assert decision.phase is Phase.SHRINKING
    assert decision.exclusions == {f"node-{number}" for number in range(4)}


def test_waiting_jobs_start_and_one_of_ten_running_jobs_shrinks() -> None:
    phases = Counter(planned.decision.phase for planned in granting(40)())
    assert phases == {Phase.RUNNING: 38, Phase.SHRINKING: 2}


@pytest.mark.parametrize(("make", "size"), [(planning, 400), (granting, 200)])
def test_a_decision_that_is_about_twice_as_much_costs_no_more_than_twice_as_many_calls(
    make: Callable[[int], Callable[[], object]], size: int
) -> None:
    make(size)()  # What is computed once only.
    assert calls(make(2 * size)) <= _MOST * calls(make(size))
