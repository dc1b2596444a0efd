"""`GET /v1/status` of a whole supervisor with agents, a launcher and training processes."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.testkit.serving import Served
from tests.testkit.waiting import PATIENCE, until

NODES = ["n1", "n2", "n3"]


async def shown(served: Served, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    status: dict[str, Any] = {}

    async def fitting() -> bool:
        nonlocal status
        status = await served.status()
        return fits(status)

    await until(fitting, lambda: f"a status that fits; the last was {status}")
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
    leader = (await served.status())["leader"]
    assert (leader["name"], leader["acts"]) == ("", True)
    assert 0 <= leader["serving_seconds"] < PATIENCE


async def page(served: Served, **asked: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {served.peers.tokens.viewer()}"}
    async with served.peers.session.get(served.peers.http + "/v1/status", headers=headers, params=asked) as answer:
        found: dict[str, Any] = await answer.json()
    return {"status": answer.status, **found}


async def pages(served: Served, limit: int) -> list[dict[str, Any]]:
    found = [await page(served, limit=limit)]
    while (after := found[-1]["next"]) is not None:
        found.append(await page(served, limit=limit, after=after))
    return found


def entries(page: dict[str, Any]) -> int:
    hosts = [{*job["hosts"], *(state["host"] for state in job["host_states"])} for job in page["jobs"]]
    return sum(max(1, len(each)) for each in hosts) + sum(len(page[part]) for part in ("notices", "agents"))


async def test_pages_together_have_everything_once(served: Served) -> None:
    """However small they are: jobs go on from page to page, host by host, and each notice and agent is on one."""
    agents = await served.peers.agents(NODES)
    await served.peers.running("train", NODES, min_workers=1)
    await served.peers.launcher("waits", ["nowhere-1", "nowhere-2"])
    await served.peers.launcher("without-hosts", [])
    await asyncio.gather(*(agents[node].notices(node) for node in NODES[1:]))
    await shown(served, lambda status: any(job["exclusions"] for job in status["jobs"]))
    everything = await served.status()
    assert everything["next"] is None
    for limit in range(1, entries(everything) + 1):
        found = await pages(served, limit)
        assert [entries(each) for each in found[:-1]] == [limit] * (len(found) - 1)
        assert 0 < entries(found[-1]) <= limit
        for part, name in (("notices", "id"), ("agents", "node")):
            assert [one[name] for each in found for one in each[part]] == sorted(one[name] for one in everything[part])
        for job in everything["jobs"]:
            parts = [one for each in found for one in each["jobs"] if one["job"] == job["job"]]
            assert parts
            assert {one["host_count"] for one in parts} == {len(job["hosts"])}
            for field in ("hosts", "workers", "exclusions"):
                assert [host for one in parts for host in one[field]] == job[field]
            states = [state["host"] for one in parts for state in one["host_states"]]
            assert states == [state["host"] for state in job["host_states"]]
        assert [bool(each["groups"]) for each in found] == [True] + [False] * (len(found) - 1)
        assert all(each["coverage"] == everything["coverage"] for each in found)


async def test_a_page_goes_on_where_the_last_one_ended_whatever_came_and_went(served: Served) -> None:
    """Names say where that was: what is gone is not missed, and what came behind it is there."""
    for name in ("a", "c", "e"):
        await served.peers.launcher(name, [f"{name}-1", f"{name}-2"])
    first = await page(served, limit=3)
    assert [(job["job"], job["hosts"]) for job in first["jobs"]] == [("a", ["a-1", "a-2"]), ("c", ["c-1"])]
    job = served.job("c")
    await served.store.forget_job(job.name, job.uid)
    await served.peers.launcher("d", ["d-1"])
    rest = await page(served, after=first["next"])
    assert [job["job"] for job in rest["jobs"]] == ["d", "e"]


async def test_no_answer_is_larger_than_a_page(served: Served) -> None:
    """Whatever is asked for: ten thousand hosts of one job are on ten pages."""
    await served.peers.launcher("large", [f"nowhere-{number}" for number in range(10_000)])
    assert [entries(each) for each in await pages(served, 1_000_000)] == [1000] * 10


async def test_a_page_that_does_not_exist_is_refused(served: Served) -> None:
    for asked in ({"limit": "0"}, {"limit": "many"}, {"after": "nonsense"}, {"after": "Wzld"}, {"after": "é"}):
        refused = await page(served, **asked)
        assert (refused["status"], refused["error"]) == (400, "malformed")
