import pytest

from tests.testkit.controlplane.order import dealt


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("long", [0, 1, 5, 12])
def test_each_test_is_run_once(processes: int, long: int) -> None:
    order = dealt(range(long), range(long, 30), processes)
    assert sorted(order) == list(range(30))


def test_each_process_begins_with_its_share_of_the_long_ones() -> None:
    assert dealt("ABCD", "uvwxyz", 2) == [*"ABuvw", *"CDxyz"]
    assert dealt("ABC", "xyz", 4) == [*"x", *"A", *"By", *"Cz"]


def test_more_long_ones_than_anything_else_are_still_all_there() -> None:
    assert dealt("ABCDE", "", 2) == [*"AB", *"CDE"]
