"""Waits until a condition is true, with and without an event loop."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds after which a fact is given up. No test measures time with it: a busy machine is slow, and is not wrong."""

What = str | Callable[[], object]
"""A fact in words, or a function that tells how things stand when it is given up."""


class NotYet(Exception):  # noqa: N818 - It is no error: `until` looks again.
    """Raised by a `look` whose object does not exist yet."""


@overload
async def until(
    look: Callable[[], Awaitable[T]], what: What = ..., *, seconds: float = ..., every: float = ...
) -> T: ...
@overload
async def until(look: Callable[[], T], what: What = ..., *, seconds: float = ..., every: float = ...) -> T: ...
async def until(
    look: Callable[[], object], what: What = "", *, seconds: float = PATIENCE, every: float = 0.01
) -> object:
    """Call `look` repeatedly until it returns a true value, and return this value.

    An assertion that fails in `look` ends the wait at once, for what can never become true any more.

    Raises:
        AssertionError: It was not true within `seconds`; the message says what was seen last.
    """
    seen: object = None
    try:
        async with asyncio.timeout(seconds) as limit:
            while True:
                try:
                    found = look()
                    seen = await found if inspect.isawaitable(found) else found
                except NotYet as missing:
                    seen = missing
                else:
                    if seen:
                        return seen
                await asyncio.sleep(every)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise AssertionError(_given_up(what, seconds, seen)) from error


def wait_until(look: Callable[[], T], what: What = "", *, seconds: float = PATIENCE, every: float = 0.01) -> T:
    """Do the same as `until`, without an event loop."""
    deadline = time.monotonic() + seconds
    seen: object = None
    while time.monotonic() < deadline:
        try:
            found = look()
        except NotYet as missing:
            seen = missing
        else:
            if found:
                return found
            seen = found
        time.sleep(every)
    raise AssertionError(_given_up(what, seconds, seen))


def _given_up(what: What, seconds: float, seen: object) -> str:
    wanted = what() if callable(what) else what
    return f"not within {seconds:g} s: {wanted or 'what was waited for'}; seen last: {seen!r}"
