"""A whole supervisor tells receivers what happens, and never waits for them."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.job import Phase
from supervisor.observability.metrics.wiring import Metrics
from supervisor.observability.notifications import notifier
from supervisor.refusals import Refusals
from tests.supervisor.observability.notifications.notifications_world import (
    Receiver,
    answering,
    configured,
    hang,
    receiving,
)
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import until

NODES = ["n1", "n2", "n3"]
QUICK = {"notifications_group_seconds": 0.1, "notifications_uncovered_seconds": 0.1}


@asynccontextmanager
async def telling(directory: Path, there: Receiver, *kinds: str, **changes: Any) -> AsyncIterator[Served]:
    file = configured(directory, {"team": there.url}, **({"kinds": kinds} if kinds else {}))
    async with serving(directory, notifications_file=file, **{**QUICK, **changes}) as served:
        yield served


async def suspended(served: Served) -> None:
    """A job of two hosts loses one, is saved and suspended."""
    agents = await served.peers.agents(["n2", "n3"])
    _, order = await served.peers.running("small", ["n2", "n3"])
    process = await served.peers.process(order["token"], "n2", rank=0)
    await agents["n3"].notices("n3", left=120.0)
    await process.reports("saved", await process.lines.matching(directive="STOP"), step=41)
    await is_suspended(served, "small")


async def is_suspended(served: Served, name: str) -> None:
    await until(lambda: served.job(name).decision.phase is Phase.SUSPENDED)


async def test_a_suspension_is_told_with_its_reason(tmp_path: Path) -> None:
    async with receiving(answering(200)) as there, telling(tmp_path, there, "suspended", "late-stop") as served:
        await suspended(served)
        await there.has(1)
        (message,) = there.messages
        assert (message["job"], message["kind"], message["drill"]) == ("small", "suspended", False)
        assert message["events"][0]["text"] == served.job("small").decision.reason
        assert "step 41" in message["text"]


async def test_a_drill_is_marked(tmp_path: Path) -> None:
    async with receiving(answering(200)) as there, telling(tmp_path, there, "shrunk", "reclaim-notice") as served:
        await served.peers.agents(NODES)
        await served.peers.running("train", NODES, min_workers=2)
        operator = served.peers.tokens.operator("alice")
        drill = {"node": "n1", "lead_seconds": 60}
        assert (await served.peers.post("/v1/drills", operator, drill)).status == 200
        await until(lambda: {each["kind"] for each in there.messages} >= {"shrunk", "reclaim-notice"})
        assert all(each["drill"] and each["title"].startswith("Drill: ") for each in there.messages)


async def test_workers_that_are_not_covered_are_told_of_once(tmp_path: Path) -> None:
    async with receiving(answering(200)) as there:
        async with telling(tmp_path, there, "uncovered-workers", "suspended") as served:
            await served.peers.agents(NODES)
            await served.peers.running("train", NODES)
            await there.has(1)
            assert "n1 (stream), n2 (stream), n3 (stream)" in there.messages[0]["text"]
            await suspended_other(served)
            await there.has(2)
        assert [each["kind"] for each in there.messages].count("uncovered-workers") == 1


async def suspended_other(served: Served) -> None:
    agents = await served.peers.agents(["m1", "m2"])
    _, order = await served.peers.running("small", ["m1", "m2"])
    processes = [await served.peers.process(order["token"], host, rank=rank) for rank, host in enumerate(("m1", "m2"))]
    await agents["m2"].notices("m2", left=120.0)
    await processes[0].reports("saved", await processes[0].lines.matching(directive="STOP"), step=41)


async def test_decisions_do_not_wait_for_a_receiver(tmp_path: Path) -> None:
    """It has the first message and has not answered when the next jobs are stopped, saved and suspended."""
    async with receiving(hang) as there, telling(tmp_path, there, notifications_timeout_seconds=60.0) as served:
        await suspended(served)
        await there.has(1)
        for number in range(3):
            agents = await served.peers.agents([f"m{number}", f"o{number}"])
            _, order = await served.peers.running(f"job{number}", [f"m{number}", f"o{number}"])
            process = await served.peers.process(order["token"], f"m{number}", rank=0)
            await agents[f"o{number}"].notices(f"o{number}", left=120.0)
            stop = await process.lines.matching(directive="STOP")
            assert (await process.reports("saved", stop, step=7)).status == 200
            await is_suspended(served, f"job{number}")
        assert (len(there.requests), there.connections) == (1, 1)


async def test_too_much_at_once_drops_the_oldest_and_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "MAX_OCCURRENCES", 3)
    metrics = Metrics("1", Refusals(), Bulkhead(Clock()), Clock())
    hooks = metrics.for_leader(lambda: True)
    async with (
        receiving(answering(200)) as there,
        telling(tmp_path, there, "reclaim-notice", notifications_group_seconds=1.0, hooks=hooks) as served,
    ):
        agents = await served.peers.agents([f"n{number}" for number in range(5)])
        for node, agent in agents.items():
            await agent.notices(node)
        await until(lambda: sum(each["count"] for each in there.messages) >= 3)
        value = metrics.registry.get_sample_value
        await until(lambda: value("job_supervisor_notifications_total", {"target": "team", "outcome": "sent"}))
        assert value("job_supervisor_notifications_total", {"target": "all", "outcome": "dropped"})


async def test_the_status_and_the_page_do_not_know_the_url(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with receiving(answering(404)) as there, telling(tmp_path, there, "suspended") as served:
        await suspended(served)
        await there.has(1)
        status = str(await served.status())
        headers = {"Authorization": f"Bearer {served.peers.tokens.viewer()}"}
        async with served.peers.session.get(served.peers.http + "/", headers=headers) as answer:
            page = await answer.text()
    logged = capfd.readouterr()
    for text in (status, page, logged.out, logged.err):
        assert not re.search("secret-path|T000", text)
