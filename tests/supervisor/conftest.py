"""A supervisor for each test that asks for one, on the event loop that it has in service."""

import asyncio

import pytest
import uvloop


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy
