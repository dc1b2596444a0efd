"""Numbers, durations and instants from outside are read within bounds, whatever the text."""

import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from servicekit.bounds import (
    LAST_INSTANT,
    LONGEST_SECONDS,
    duration,
    instant_of,
    keep_newest,
    later,
    nearest_seconds,
    pace,
    unix_seconds,
    whole,
)

END_OF_TIME = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-12)))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("100", 100),
        ("007", 7),
        ("101", None),
        ("9" * 5000, None),
        ("-1", None),
        ("+1", None),
        ("1.5", None),
        ("1e3", None),
        ("٣", None),
        ("²", None),
        (" 1", None),
        ("1_0", None),
        ("", None),
        (None, None),
    ],
)
def test_a_whole_number_is_read_within_its_bound(text: str | None, number: int | None) -> None:
    """Other text, also one with so many digits that `int` refuses it, is no number."""
    assert whole(text, 100) == number


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("600", 600.0),
        ("90s", 90.0),
        ("10m", 600.0),
        ("2h", 7200.0),
        ("7d", 604800.0),
        ("0", 0.0),
        ("3650d", LONGEST_SECONDS),
        ("3651d", None),
        ("9" * 5000, None),
        ("10 m", None),
        ("10M", None),
        ("1h30m", None),
        ("ten", None),
        ("inf", None),
        ("", None),
        (None, None),
    ],
)
def test_a_duration_may_have_a_unit(text: str | None, seconds: float | None) -> None:
    """A number without a unit is seconds; what is longer than ten years is none."""
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "read"),
    [(0.5, 0.5), (1e-6, 1e-6), (5e-324, None), (0.0, None), (-1.0, None), (float("nan"), None), (None, None)],
)
def test_a_step_that_takes_no_time_was_not_measured(seconds: float | None, read: float | None) -> None:
    """A division by it would be infinite."""
    assert pace(seconds) == read


@pytest.mark.parametrize(
    ("instant", "seconds"),
    [
        (datetime(2026, 11, 24, tzinfo=UTC), 1795478400.0),
        (datetime(2026, 11, 24), 1795478400.0),  # noqa: DTZ001 - without an offset
        (END_OF_TIME, None),
        (datetime(9000, 1, 1, tzinfo=UTC) + timedelta(seconds=1), None),
        (datetime(1, 1, 1), None),  # noqa: DTZ001
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12))), None),
        (None, None),
    ],
)
def test_an_instant_beyond_the_bounds_is_unknown(instant: datetime | None, seconds: float | None) -> None:
    """Nothing can be added to it, and it has no text."""
    assert unix_seconds(instant) == seconds


@pytest.mark.parametrize("seconds", [-1e300, -1.0, 1e12, 1e300, sys.float_info.max, float("inf"), float("-inf")])
def test_every_stored_instant_has_a_text(seconds: float) -> None:
    """Beyond the bounds it is the bound."""
    assert instant_of(seconds).timestamp() in {0.0, LAST_INSTANT}
    assert nearest_seconds(END_OF_TIME) == LAST_INSTANT


@pytest.mark.parametrize("seconds", [2.5e11, -2.5e11, 1e300, float("inf")])
def test_what_lies_beyond_the_bounds_is_not_later(seconds: float) -> None:
    """A pod may ask for thousands of years of grace."""
    now = datetime(2026, 11, 24, tzinfo=UTC)
    assert later(now, seconds) is None
    assert later(now, 60.0) == now + timedelta(seconds=60)
    assert later(END_OF_TIME, 0.0) is None


def test_the_newest_values_are_kept() -> None:
    """A value that is kept again counts as new."""
    kept: dict[str, int] = {}
    for number, key in enumerate("abac"):
        keep_newest(kept, key, number, 2)
    assert kept == {"a": 2, "c": 3}
