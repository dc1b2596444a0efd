"""A bucket of tokens limits how often something is done."""

from hypothesis import given
from hypothesis import strategies as st

from servicekit.rate import TokenBucket, TokenBuckets


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


def test_one_key_takes_nothing_from_another() -> None:
    buckets = TokenBuckets(rate=1.0, burst=2.0)
    assert [buckets.take("a", 0.0) == 0.0 for _ in range(3)] == [True, True, False]
    assert buckets.take("b", 0.0) == 0.0


def test_of_too_many_keys_the_most_silent_is_forgotten() -> None:
    buckets = TokenBuckets(rate=1.0, burst=1.0, most=2)
    assert [buckets.take(key, 0.0) == 0.0 for key in "abab"] == [True, True, False, False]
    buckets.take("c", 0.0)
    assert [buckets.take(key, 0.0) == 0.0 for key in "ba"] == [False, True]
