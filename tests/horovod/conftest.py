from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from simulator.harness import World, world
from tests.horovod.horovod_installation import NotInstallable, installed

OpenWorld = Callable[[int], Coroutine[Any, Any, World]]


@pytest.fixture(scope="session")
def horovod() -> Path:
    """The environment that has Horovod's elastic driver."""
    try:
        return installed()
    except NotInstallable as reason:
        pytest.skip(f"Horovod 0.28.1 cannot be installed here: {reason}")


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests have measured."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} {value}")
