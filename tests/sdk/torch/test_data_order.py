"""The order of samples does not depend on how many ranks divide a step."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeai.torch.data import DataOrder


def _shuffled(samples: int, epoch: int) -> list[int]:
    return random.Random(epoch).sample(range(samples), samples)  # noqa: S311 - an order, not a secret


def _order(samples: int, global_batch: int) -> DataOrder:
    return DataOrder(samples, global_batch, lambda epoch: _shuffled(samples, epoch))


@given(st.integers(1, 30), st.integers(1, 12), st.lists(st.integers(1, 12), min_size=1, max_size=20))
def test_no_sample_is_used_twice_or_left_out_over_any_sequence_of_sizes(
    samples: int, global_batch: int, sizes: list[int]
) -> None:
    """The used samples are the beginning of all epochs, one after the other."""
    order = _order(samples, global_batch)
    used: list[int] = []
    for step, size in enumerate(min(size, global_batch) for size in sizes):
        used += (index for rank in range(size) for index in order.batch(step, rank, size).indices)
    assert len(used) == global_batch * len(sizes)
    epochs = [index for epoch in range(len(used) // samples + 1) for index in _shuffled(samples, epoch)]
    assert used == epochs[: len(used)]


@given(st.integers(1, 12), st.integers(1, 12))
def test_weighted_means_of_ranks_are_the_mean_of_the_global_batch(global_batch: int, size: int) -> None:
    size = min(size, global_batch)
    batches = [_order(40, global_batch).batch(3, rank, size) for rank in range(size)]
    assert sum(batch.weight for batch in batches) / size == pytest.approx(1)
    lengths = sorted(len(batch.indices) for batch in batches)
    assert lengths[-1] - lengths[0] <= 1
    for one, other in pairwise(batches):
        assert one.weight / len(one.indices) == pytest.approx(other.weight / len(other.indices))


def test_more_ranks_than_samples_in_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="a global batch of 2 is too small for 3 ranks"):
        _order(10, 2).batch(0, 0, 3)


@pytest.mark.parametrize(("samples", "global_batch"), [(0, 1), (1, 0)])
def test_an_empty_data_set_or_step_is_refused(samples: int, global_batch: int) -> None:
    with pytest.raises(ValueError, match="both are at least 1"):
        _order(samples, global_batch)
