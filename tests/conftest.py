"""Hooks and fixtures of all tests."""

import asyncio
import gc
import os
import signal

import pytest
from hypothesis import settings

from tests.testkit.loops import AsyncioPolicy

# uvloop starts processes by fork(2), and gRPC's handlers of it crash now and then in a child that only goes on to exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Torch asks DNS for the name of each address that it connects to. An answer that is lost costs 1 s then instead of 5.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:5")

# The same examples in each run, however long a busy machine takes for one; `examples` says more.
settings.register_profile("every run", deadline=None, derandomize=True, database=None)
settings.load_profile("every run")

pytest_plugins = ["tests.testkit.fixtures"]


def pytest_configure() -> None:
    """Take SIGINT as under a terminal: a shell script's background job (`nohup … &`) is started with it ignored.

    A child inherits an ignored signal, so that a test which sends SIGINT to one would wait for ever. This runs in each
    worker of pytest-xdist as well.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Otherwise pytest-asyncio makes an event loop to restore after each test, which asyncio.run in a later test forgets
    # without closing it, and the warning of that fails whatever test runs at the next garbage collection.
    asyncio.set_event_loop(None)


def pytest_collection_finish() -> None:
    """Keep what was collected out of each later search for garbage, which would find all of it in use."""
    gc.freeze()


@pytest.fixture(scope="session")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return AsyncioPolicy()
