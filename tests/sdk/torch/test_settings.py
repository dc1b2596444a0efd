"""How often copies of the state are taken."""

import pytest
from kubeai.torch.settings import PeerCopies


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        (PeerCopies(every=7), 7),
        (PeerCopies(), 10),  # 20 ms are 1 % of 2 s
        (PeerCopies(share=0.1), 5),  # 0.5 s of sending in 1 s
        (PeerCopies(share=1.0), 5),
    ],
)
def test_copies_take_no_more_than_their_share_of_time_and_network(plan: PeerCopies, steps: int) -> None:
    assert plan.steps_between(0.02, 0.5, 0.2) == steps


@pytest.mark.parametrize("step_seconds", [None, 0.0])
def test_the_second_copy_follows_at_once_if_nobody_knows_how_long_a_step_takes(step_seconds: float | None) -> None:
    assert PeerCopies().steps_between(1.0, 1.0, step_seconds) == 1


def test_a_copy_is_taken_at_some_time_however_much_it_costs() -> None:
    assert PeerCopies(share=1e-9).steps_between(1e9, 1.0, 1e-9) == PeerCopies().steps_between(1e9, 1.0, 1e-9)


@pytest.mark.parametrize(("every", "share"), [(0, 0.01), (-1, 0.01), (None, 0.0), (None, 1.1), (None, float("nan"))])
def test_numbers_that_mean_nothing_are_refused(every: int | None, share: float) -> None:
    with pytest.raises(ValueError, match=r"at least 1|at most 1"):
        PeerCopies(every, share)


def test_copies_are_in_the_memory_of_processes_unless_a_directory_is_named() -> None:
    assert PeerCopies().directory is None
