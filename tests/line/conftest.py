from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from simulator.harness import World, world

OpenWorld = Callable[[int], Coroutine[Any, Any, World]]


@pytest.fixture
async def open_world(tmp_path: Path) -> AsyncIterator[OpenWorld]:
    """Opens a world with so many nodes, node1 and on; it must end without leaving a process behind."""
    opened = []

    async def open_with(nodes: int) -> World:
        context = world(tmp_path, [f"node{number}" for number in range(1, nodes + 1)])
        opened.append(context)
        return await context.__aenter__()

    yield open_with
    for context in opened:
        await context.__aexit__(None, None, None)
