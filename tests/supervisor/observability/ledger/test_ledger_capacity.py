"""`GET /v1/capacity` of a supervisor that serves, also after another one has led."""

import time
from pathlib import Path
from typing import Any

import pytest
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.domain.agreement import Purpose
from supervisor.observability.ledger.hours import HOUR
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import until

_NODES = ["n1", "n2", "n3"]


async def test_the_hosts_of_a_job_and_what_its_processes_measure(tmp_path: Path) -> None:
    """What was measured is still known when the processes are gone, and to the next supervisor."""
    async with serving(tmp_path) as served:
        await served.peers.agents(_NODES)
        _, order = await served.peers.running("train", _NODES, min_workers=2)
        says = {"agrees": [Purpose.STOP], "step_seconds": 0.25, "start_seconds": 7.5, "change_seconds": 0.125}
        await served.peers.process(order["token"], "n1", 0, **says)

        async def measured() -> Any:
            found = await _capacity(served)
            costs = [span["costs"] for span in found["spans"]]
            return found if costs and costs[-1]["step_seconds"] is not None else None

        found = await until(measured, "the costs of the job are known")
        assert {stay["host"] for stay in found["stays"]} == {*_NODES}
        assert not any(stay["gone"] for stay in found["stays"])
        [span] = found["spans"][-1:]
        assert (span["least"], span["most"], span["in_process"], span["restarts"]) == (2, 3, True, 0)
        assert span["costs"] == {
            "step_seconds": 0.25,
            "checkpoint_seconds": None,
            "start_seconds": 7.5,
            "change_seconds": 0.125,
        }
    async with serving(tmp_path) as served:
        again = await _capacity(served)
    assert again["spans"][0]["begins"] == found["spans"][0]["begins"]
    assert again["spans"][0]["costs"] == span["costs"]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"since": "0"},
        {"job": "train"},
        {"job": "train", "since": "nan"},
        {"job": "a", "since": "0", "x": "1"},
        {"job": "a", "pool": "a/b/c", "since": "0"},
        {"pool": "a/b", "since": "0"},
        {"pool": "a//c", "since": "0"},
    ],
)
async def test_a_question_that_is_none_is_refused(served: Served, query: dict[str, str]) -> None:
    assert (await _capacity(served, query))["error"] == "malformed"


async def test_the_hosts_of_a_pool_are_those_whose_agents_have_named_it(served: Served) -> None:
    machine = wire.Machine(cloud="aws", zone="a", instance_type="p5", price_class=wire.PRICE_CLASS_SPOT)
    for node in _NODES[:2]:
        await served.peers.agent(node, machine=machine)
    await served.peers.agent(_NODES[2])
    await served.peers.running("train", _NODES, min_workers=2)
    found = await _capacity(served, {"pool": "aws/a/p5", "since": str(time.time() - HOUR)})
    assert {stay["host"] for stay in found["stays"]["train"]} == {*_NODES[:2]}
    assert {tuple(stay["pool"].values()) for stay in found["stays"]["train"]} == {("aws", "a", "p5", "spot")}
    assert (found["pool"], found["cut"]) == ("aws/a/p5", False)


async def _capacity(served: Served, query: dict[str, str] | None = None) -> Any:
    headers = {"Authorization": f"Bearer {served.peers.tokens.viewer()}"}
    asked = {"job": "train", "since": str(time.time() - HOUR)} if query is None else query
    async with served.peers.session.get(served.peers.http + "/v1/capacity", headers=headers, params=asked) as answer:
        return await answer.json()
