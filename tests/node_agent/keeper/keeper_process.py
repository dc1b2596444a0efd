"""A real keeper process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.node_agent.agent_process import AgentProcess, agent
from tests.node_agent.keeper.keeper_world import MIB
from tests.testkit.waiting import until

_NOTHING: Mapping[str, str] = MappingProxyType({})


@asynccontextmanager
async def keeper(directory: Path, more: Mapping[str, str] = _NOTHING, **settings: Any) -> AsyncIterator[AgentProcess]:
    """A keeper of 64 MiB without authentication, unless its settings say otherwise; `more` are further variables."""
    environ = {
        "STATE_KEEPER_DIRECTORY": str(directory),
        "STATE_KEEPER_BYTES": str(64 * MIB),
        "STATE_KEEPER_ADDRESS": "127.0.0.1:0",
        "STATE_KEEPER_AUTHENTICATION": "none",
        "STATE_KEEPER_PROBE_ADDRESS": "127.0.0.1:0",
        "STATE_KEEPER_METRICS_ADDRESS": "127.0.0.1:0",
        **{f"STATE_KEEPER_{name.upper()}": str(value) for name, value in settings.items()},
        **more,
    }
    async with agent(environ, ("node_agent.keeper",)) as running:
        yield running


async def listening(running: AgentProcess, event: str = "keeper.listening") -> str:
    """The address at which it serves, by that line of its log."""
    await until(lambda: running.event(event))
    line = running.event(event)
    assert line is not None
    return str(line["address"])
