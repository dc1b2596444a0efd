"""`GET /v1/status` of a whole supervisor with agents, a launcher and training processes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio

from tests.supervisor.serving import PATIENCE, Served, serving

NODES = ["n1", "n2", "n3"]


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A supervisor that nobody has spoken to yet."""
    async with serving(tmp_path) as supervisor:
        yield supervisor


async def shown(served: Served, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first status that fits."""
    deadline = time.monotonic() + PATIENCE
    while not fits(status := await served.status()):
        assert time.monotonic() < deadline, f"nothing fits; the last was {status}"
        await asyncio.sleep(0.01)
    return status


async def test_a_reclaim_is_shown_from_its_notice_to_its_cost(served: Served) -> None:
    """The notice counts down for its job, and the group holds what became of it."""
    agents = await served.peers.agents(NODES)
    _, order = await served.peers.running("train", NODES)
    process = await served.peers.process(order["token"], "n1", rank=0)
    await agents["n2"].notices("n2", left=60.0)
    stop = await process.lines.matching(directive="STOP")
    await process.reports("saved", stop, step=17)
    status = await shown(served, lambda status: any(group["suspended"] for group in status["groups"]))
    (job,), (group,), (notice,) = status["jobs"], status["groups"], status["notices"]
    assert (job["phase"], job["acknowledgement"]["step"]) == ("Suspended", 17)
    assert 0 <= job["since_seconds"] < PATIENCE
    assert (notice["subject"], notice["kind"], notice["simulated"]) == ("n2", "node", False)
    assert 0 < notice["seconds_left"] <= 60
    assert (group["outcome"], group["subjects"], group["sources"]) == ("stopped", ["n2"], ["metadata"])
    assert (group["step"], group["acknowledged"]) == (17, "saved")
    assert 0 <= group["decided_after_seconds"] < PATIENCE
    assert 0 < group["margin_seconds"] < 60


async def test_a_worker_that_nobody_looks_after_is_counted(served: Served) -> None:
    """Its node's agent has gone, and it never had a stream."""
    agents = await served.peers.agents(NODES)
    _, order = await served.peers.running("train", NODES)
    await served.peers.process(order["token"], "n1", rank=0)
    agents["n3"].call.cancel()
    await served.agent_is("n3", connected=False)
    status = await served.status()
    states = {state["host"]: (state["agent"], state["stream"]) for state in status["jobs"][0]["host_states"]}
    assert states == {"n1": (True, True), "n2": (True, False), "n3": (False, False)}
    assert status["coverage"] == {
        "workers": 3,
        "without_agent": 1,
        "without_stream": 2,
        "agents_connected": 2,
        "agents_unknown": 1,
        "agents_reclaimed": 0,
    }


async def test_the_supervisor_says_who_leads(served: Served) -> None:
    """Outside of a cluster it has no name, and no rivals."""
    leader = (await served.status())["leader"]
    assert (leader["name"], leader["acts"]) == ("", True)
    assert 0 <= leader["serving_seconds"] < PATIENCE
