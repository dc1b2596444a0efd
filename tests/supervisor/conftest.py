"""A supervisor for each test that asks for one, on the same kind of event loop as in production."""

import asyncio

import pytest

from tests.testkit.loops import UvloopPolicy


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return UvloopPolicy()
