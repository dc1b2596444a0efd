"""The sizes that a run may have."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.decide.grant import (
    joining_workers,
    least_workers,
    most_workers,
    startable_workers,
    usable_workers,
)
from supervisor.domain.job import OnLoss, Spec
from tests.supervisor.decide.decide_builders import spec
from tests.testkit.properties import examples

COUNTS = st.integers(0, 40)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Any job whose requested size is a multiple, as registrations make sure."""
    multiple = draw(st.integers(1, 4))
    requested = multiple * draw(st.integers(1, 6))
    asked = spec(draw(st.integers(1, requested)), draw(st.integers(requested, 30)), requested=requested)
    least = draw(st.none() | st.integers(asked.min_workers, requested))
    return replace(asked, worker_multiple=multiple, on_loss=draw(st.sampled_from(OnLoss)), least_to_start=least)


@examples(200)
@given(asked=specs(), count=COUNTS)
def test_a_size_is_the_largest_that_the_job_wants(asked: Spec, count: int) -> None:
    """It is a multiple, is not below the minimum, and no larger one would do."""
    size, hold = usable_workers(count, asked), asked.on_loss is OnLoss.HOLD
    wanted = [n for n in range(count + 1) if n % asked.worker_multiple == 0 and n >= asked.min_workers and n]
    assert size == max((n for n in wanted if not hold or n == asked.requested_workers), default=0)


@examples(200)
@given(asked=specs(), count=COUNTS)
def test_a_run_starts_on_at_most_what_was_requested(asked: Spec, count: int) -> None:
    size = startable_workers(count, asked)
    assert size == 0 or asked.start_workers <= size <= min(count, asked.requested_workers)
    assert size == 0 or usable_workers(size, asked) == size
    assert (size > 0) == (count >= least_workers(asked, to_start=True))


@examples(200)
@given(asked=specs(), workers=COUNTS, count=COUNTS)
def test_hosts_join_only_to_make_another_size(asked: Spec, workers: int, count: int) -> None:
    """A run takes none that it could not use, and none above its maximum."""
    more = joining_workers(workers, count, asked)
    assert 0 <= more <= count
    if more:
        assert usable_workers(workers + more, asked) == workers + more <= asked.max_workers


@examples(200)
@given(asked=specs(), count=COUNTS)
def test_the_bounds_are_sizes(asked: Spec, count: int) -> None:
    """They are what a job can be told that it needs, and gets at most."""
    least, most = least_workers(asked), most_workers(asked)
    assert usable_workers(least, asked) == least <= most == usable_workers(most, asked)
    assert asked.min_workers <= least
    assert most <= asked.max_workers
    assert (usable_workers(count, asked) > 0) == (count >= least)


@pytest.mark.parametrize(("count", "size"), [(2, 0), (3, 0), (4, 4), (5, 4), (7, 6), (8, 8)])
def test_a_job_of_two_host_groups_leaves_one_host_unused(count: int, size: int) -> None:
    assert usable_workers(count, replace(spec(3, 8), worker_multiple=2)) == size


@pytest.mark.parametrize(("count", "size"), [(5, 0), (6, 6), (7, 6)])
def test_a_job_that_holds_has_one_size(count: int, size: int) -> None:
    """Also where more hosts are there."""
    assert usable_workers(count, replace(spec(3, 8, requested=6), on_loss=OnLoss.HOLD)) == size
