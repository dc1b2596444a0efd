"""A bucket of tokens limits how often something is done."""

from hypothesis import given
from hypothesis import strategies as st

from servicekit.rate import TokenBucket


@given(st.lists(st.floats(0, 5), max_size=60))
def test_no_more_than_the_burst_and_the_rate(pauses: list[float]) -> None:
    bucket, now, taken = TokenBucket(rate=2.0, burst=5.0), 100.0, 0
    for pause in pauses:
        now += pause
        taken += bucket.take(now) == 0.0
    assert taken <= 5 + 2 * (now - 100.0) + 1e-6


def test_a_bucket_says_when_there_is_a_token_again() -> None:
    bucket = TokenBucket(rate=4.0, burst=1.0)
    assert bucket.take(0.0) == 0.0
    wait = bucket.take(0.0)
    assert 0.0 < wait <= 0.25
    assert bucket.take(wait) == 0.0


def test_whoever_was_silent_for_long_may_not_say_everything_at_once() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0)
    assert bucket.take(0.0) == 0.0
    assert [bucket.take(1000.0) == 0.0 for _ in range(6)] == [True] * 5 + [False]
