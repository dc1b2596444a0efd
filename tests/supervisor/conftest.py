"""A supervisor for each test that asks for one, on the event loop that it has in service."""

import asyncio

import pytest

from tests.testkit.loops import UvloopPolicy


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return UvloopPolicy()
