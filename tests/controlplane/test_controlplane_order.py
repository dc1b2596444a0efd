import pytest

from tests.testkit.controlplane.order import dealt


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("long", [0, 1, 5, 12])
def test_each_test_is_run_once(processes: int, long: int) -> None:
    order = dealt(range(long), range(long, 30), processes, lambda test: test // 3)
    assert sorted(order) == list(range(30))


def test_each_process_begins_with_its_share_of_the_long_ones() -> None:
    assert dealt("ABCD", "uvwxyz", 2, str) == [*"ABuvw", *"CDxyz"]
    assert dealt("ABC", "xyz", 4, str) == [*"x", *"A", *"By", *"Cz"]


def test_more_long_ones_than_anything_else_are_still_all_there() -> None:
    assert dealt("ABCDE", "", 2, str) == [*"AB", *"CDE"]


def test_the_long_ones_of_a_module_are_in_one_process() -> None:
    assert dealt(["A1", "B1", "B2", "B3", "C1"], "vwxyz", 2, lambda test: test[0]) == [
        *("A1", "B1", "B2", "B3", "v"),
        *("C1", "w", "x", "y", "z"),
    ]
