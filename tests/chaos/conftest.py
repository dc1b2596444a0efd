from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.chaos.chaos_world")

from simulator.harness import ReplayWorld, ServiceSettings, world  # noqa: E402 - after the line that rewrites its assertions
from tests.chaos.chaos_world import NODES, QUICK  # noqa: E402 - as above

OpenWorld = Callable[..., Coroutine[Any, Any, ReplayWorld]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the whole folder as a long suite; tests of its short form have the mark `brief` as well."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.long)


@pytest.fixture
async def open_world(tmp_path: Path) -> AsyncIterator[OpenWorld]:
    """Opens a world of four nodes; it must end without leaving a process behind."""
    opened = []

    async def open_with(given: ServiceSettings = QUICK) -> ReplayWorld:
        context = world(tmp_path, [str(node) for node in NODES], settings=given)
        opened.append(context)
        return await context.__aenter__()

    yield open_with
    for context in opened:
        await context.__aexit__(None, None, None)
