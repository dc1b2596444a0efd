"""`GET /v1/ledger` of a supervisor that serves, also after another one has led."""

import time
from pathlib import Path
from typing import Any

import pytest
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.domain.ledger import HELD, Account
from supervisor.observability.ledger.hours import HOUR
from tests.testkit.serving import PeerRefusal, Served, serving
from tests.testkit.waiting import until

_NODES = ["n1", "n2", "n3"]


async def test_the_ledger_tells_what_a_job_held_and_what_it_lacked(tmp_path: Path) -> None:
    """Up to the moment of the question; and the next supervisor goes on where this one has ended."""
    async with serving(tmp_path) as served:
        await served.peers.agents(_NODES)
        await served.peers.running("train", _NODES, max_workers=4, requested_workers=4)

        async def counted() -> Any:
            found = await _seconds(served, "train")
            return found if found.get(Account.UNMEASURED, 0.0) > 0.0 else None

        first = await until(counted, "the job's workers are counted")
        assert set(first) <= {Account.UNMEASURED, Account.WAITING, Account.STARTING, Account.MISSING}
        assert first[Account.MISSING] == pytest.approx(first[Account.UNMEASURED] / 3, rel=0.2)
        whole = await _ledger(served)
        [job] = whole["jobs"]
        held = {each["instance_type"]: each["worker_seconds"] for each in job["machines"]}
        assert held == {"": pytest.approx(sum(job["worker_seconds"].get(account, 0.0) for account in HELD), rel=0.2)}
        assert 0.0 < whole["counted_seconds"] < whole["until"] - whole["since"]
        assert whole["since"] % HOUR == 0.0
    async with serving(tmp_path) as served:
        later = await _seconds(served, "train")
    assert later[Account.UNMEASURED] >= first[Account.UNMEASURED]


async def test_what_was_held_is_told_by_pool_if_it_is_asked_for(served: Served) -> None:
    """Of one host an agent names the machine."""
    machine = wire.Machine(cloud="aws", zone="a", instance_type="p5", price_class=wire.PRICE_CLASS_SPOT)
    await served.peers.agent("n1", machine=machine)
    await served.peers.agents(_NODES[1:])
    await served.peers.running("train", _NODES)
    since = str(time.time() - HOUR)

    async def held() -> Any:
        [job] = (await _ledger(served, {"since": since, "by": "pool"}))["jobs"]
        by_zone = {pool["zone"]: sum(pool["worker_seconds"].values()) for pool in job["pools"]}
        return (job, by_zone) if by_zone.keys() == {"a", ""} else None

    job, by_zone = await until(held, "both pools are known")
    assert by_zone[""] == pytest.approx(2 * by_zone["a"], rel=0.3)
    of_job = sum(job["worker_seconds"].get(account, 0.0) for account in HELD)
    assert sum(by_zone.values()) == pytest.approx(of_job)
    assert all(pool["went"] == 0 for pool in job["pools"])
    assert not (await _ledger(served))["jobs"][0]["pools"]


@pytest.mark.parametrize(
    "spent",
    [
        {"seconds": 0.001, "first": 0, "highest": 1, "made": 1, "later": "field"},
        {"seconds": 1.0, "first": -1, "highest": 1, "made": 1},
        {"seconds": 1e300, "first": 0, "highest": 1, "made": 1},
        {"seconds": 1.0, "first": 0, "highest": 2**60, "made": 1},
        {"seconds": "long"},
        [],
        7,
        None,
    ],
)
async def test_what_a_process_says_of_its_time_spoils_no_report_of_it(served: Served, spent: Any) -> None:
    """The report may be of the checkpoint for which its job waits."""
    await served.peers.agents(_NODES)
    _, order = await served.peers.running("train", _NODES)
    process = await served.peers.process(order["token"], "n1", 0)
    running = await process.lines.matching(directive="RUN")
    assert await process.reports("saved", running, spent=spent) == PeerRefusal(200, None)
    found = await _seconds(served, "train")
    assert (found.get(Account.TRAINING, 0.0) > 0.0) is (isinstance(spent, dict) and "later" in spent)


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"since": "9", "until": "8"},
        {"since": "9", "until": "inf"},
        {"since": "nan"},
        {"since": "inf"},
        {"since": "9e99"},
        {"since": "0", "jobs": "a"},
        {"since": "0", "by": "zone"},
    ],
)
async def test_a_question_that_is_none_is_refused(served: Served, query: dict[str, str]) -> None:
    assert (await _ledger(served, query))["error"] == "malformed"


async def _seconds(served: Served, job: str) -> dict[str, float]:
    jobs = {each["job"]: each["worker_seconds"] for each in (await _ledger(served)).get("jobs", ())}
    return dict(jobs.get(job, {}))


async def _ledger(served: Served, query: dict[str, str] | None = None) -> Any:
    headers = {"Authorization": f"Bearer {served.peers.tokens.viewer()}"}
    asked = {"since": str(time.time() - HOUR)} if query is None else query
    async with served.peers.session.get(served.peers.http + "/v1/ledger", headers=headers, params=asked) as answer:
        return await answer.json()
