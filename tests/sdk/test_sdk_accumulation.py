"""The share of a rank in the global batch."""

import kubeai.elastic as kubeai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.testkit.properties import examples


@examples(200)
@given(world_size=st.integers(1, 20), more=st.integers(0, 40), micro_batch=st.integers(1, 8), data=st.data())
def test_the_ranks_process_each_sample_once(world_size: int, more: int, micro_batch: int, data: st.DataObject) -> None:
    """Their shares join without a gap, and gradients that are averaged over the ranks are the global batch's."""
    count = world_size + more
    shares = [
        kubeai.accumulation(count * micro_batch, micro_batch, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    numbers = [number for share in shares for number in range(share.first, share.first + share.steps)]
    assert numbers == list(range(count))
    gradients = data.draw(st.lists(st.floats(-1, 1), min_size=count, max_size=count))
    of_ranks = [sum(gradients[share.first : share.first + share.steps]) * share.loss_scale for share in shares]
    assert sum(of_ranks) / world_size == pytest.approx(sum(gradients) / count)
    assert {share.equal for share in shares} == {len({share.steps for share in shares}) == 1}


def test_fewer_ranks_accumulate_more() -> None:
    """Six ranks instead of eight share 16 micro-batches; four of them take one more than the others."""
    before = kubeai.accumulation(64, 4, rank=0, world_size=8)
    assert before == kubeai.Accumulation(first=0, steps=2, loss_scale=0.5, equal=True)
    after = [kubeai.accumulation(64, 4, rank=rank, world_size=6) for rank in range(6)]
    assert [share.steps for share in after] == [3, 3, 3, 3, 2, 2]


@pytest.mark.parametrize(
    ("numbers", "ranks", "why"),
    [
        ((10, 4), (0, 1), "micro-batches of 4 samples do not divide a global batch of 10"),
        ((8, 0), (0, 1), "micro-batches of 0 samples do not divide a global batch of 8"),
        ((0, 4), (0, 1), "micro-batches of 4 samples do not divide a global batch of 0"),
        ((8, 4), (0, 3), "2 micro-batches are too few for 3 ranks; use smaller ones"),
        ((8, 4), (2, 2), "rank 2 is not one of 2 ranks"),
        ((8, 4), (-1, 2), "rank -1 is not one of 2 ranks"),
    ],
)
def test_what_cannot_be_shared_is_refused(numbers: tuple[int, int], ranks: tuple[int, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        kubeai.accumulation(*numbers, rank=ranks[0], world_size=ranks[1])
