"""The waiting that all tests share."""

from collections.abc import Iterator

import pytest

from tests.testkit.waiting import NotYet, until, wait_until


def _answers(*answers: object) -> Iterator[object]:
    yield from answers


async def test_the_first_true_answer_is_returned() -> None:
    answers = _answers(None, 0, "", "found", "later")

    async def look() -> object:
        return next(answers)

    assert await until(look) == "found"
    assert wait_until(lambda: next(answers)) == "later"


async def test_giving_up_says_what_was_wanted_and_what_was_seen() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: three of them; seen last: \[\]"):
        await until(list, "three of them", seconds=0.05)
    with pytest.raises(AssertionError, match=r"three in 2; seen last: False"):
        wait_until(lambda: False, lambda: f"three in {1 + 1}", seconds=0.05)


async def test_what_is_not_there_yet_is_looked_for_again() -> None:
    answers = _answers(NotYet("no file"), "found")

    def look() -> object:
        answer = next(answers)
        if isinstance(answer, NotYet):
            raise answer
        return answer

    assert await until(look) == "found"


async def test_a_look_that_fails_or_times_out_by_itself_ends_the_wait() -> None:
    def broken() -> bool:
        raise TimeoutError("its own")

    def wrong() -> bool:
        raise AssertionError("it has ended")

    with pytest.raises(TimeoutError, match="its own"):
        await until(broken)
    with pytest.raises(AssertionError, match="it has ended"):
        wait_until(wrong)
