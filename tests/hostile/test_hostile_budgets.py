"""The jobs of one launcher token share one budget of hosts, and other tokens do not notice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.hostile.hostile_world import Bystander, counted, refused
from tests.testkit.serving import Lines, PeerRefusal, Served, launcher_hello, serving

STREAM, REPORT = "/v1/launchers/stream", "/v1/launchers/report"
BUDGET = 10
ACCEPTED, MANY = PeerRefusal(200, None), PeerRefusal(429, "too_many")

pytestmark = pytest.mark.usefixtures("bystander")


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, launcher_hosts=BUDGET) as supervisor:
        yield supervisor


def listing(job: str, hosts: int, **changes: Any) -> dict[str, Any]:
    """The hello of a job with so many hosts of its own, which can start on any of them."""
    sizes = {"min_workers": 1, "max_workers": 100, "requested_workers": 100}
    return launcher_hello(job, [f"{job}-{number}" for number in range(hosts)], **sizes, **changes)


def report(hello: dict[str, Any], revision: int, hosts: int) -> dict[str, Any]:
    listed = [f"{hello['job']}-{number}" for number in range(hosts)]
    said = {**hello["report"], "revision": revision, "hosts": listed, "restarts": revision}
    return {"job": hello["job"], "instance": hello["instance"], **said}


async def opened(served: Served, hello: dict[str, Any]) -> Lines:
    lines = await served.peers.lines(STREAM, served.peers.tokens.launcher("mallory"), hello)
    assert (await lines.any())["type"] == "order"
    return lines


def listed(served: Served) -> dict[str, int]:
    jobs = served.store.snapshot().jobs.values()
    return {job.name: len(job.observed.hosts) for job in jobs if job.observed.launcher == "mallory"}


async def test_a_job_beyond_the_budget_is_refused_and_the_others_go_on(served: Served) -> None:
    """The refusal says the budget and what is used; a smaller job fits, and another token has its own."""
    token = served.peers.tokens.launcher("mallory")
    first, second = listing("first", 6), listing("second", 3)
    streams = [await opened(served, hello) for hello in (first, second)]
    before = await refused(served)
    headers = {"Authorization": f"Bearer {token}"}
    async with served.peers.session.post(
        served.peers.http + STREAM, headers=headers, json=listing("third", 2)
    ) as answer:
        said = await answer.json()
    assert (answer.status, said["error"]) == (429, "too_many")
    assert "third lists 2 hosts" in said["message"]
    assert "2 jobs that go on have 9" in said["message"]
    assert "10 hosts in all of them together" in said["message"]
    await counted(served, before, http_too_many=1)
    assert listed(served) == {"first": 6, "second": 3}
    assert await served.peers.post(REPORT, token, report(first, 2, 6)) == ACCEPTED
    assert await served.peers.refused_or_open(STREAM, token, listing("small", 1)) == ACCEPTED
    another = served.peers.tokens.launcher("another")
    assert await served.peers.refused_or_open(STREAM, another, listing("others", 8)) == ACCEPTED
    for stream in streams:
        assert await stream.any() == {"type": "heartbeat"}


async def test_jobs_that_arrive_together_cannot_all_take_the_same_room(served: Served) -> None:
    token = served.peers.tokens.launcher("mallory")
    hellos = [listing(f"job-{number}", 4) for number in range(8)]
    answers = await asyncio.gather(*(served.peers.refused_or_open(STREAM, token, hello) for hello in hellos))
    assert sorted(answer.status for answer in answers) == [200] * 2 + [429] * 6
    assert sum(listed(served).values()) == 8


async def test_lists_that_grow_together_cannot_all_take_the_same_room(served: Served) -> None:
    """Two jobs of two hosts that list eight at once have ten together."""
    token = served.peers.tokens.launcher("mallory")
    hellos = [listing(f"job-{number}", 2) for number in range(2)]
    streams = [await opened(served, hello) for hello in hellos]
    await asyncio.gather(*(served.peers.post(REPORT, token, report(hello, 2, 8)) for hello in hellos))
    assert sum(listed(served).values()) == BUDGET
    assert len(streams) == 2


async def test_of_a_list_that_grows_too_long_the_rest_of_the_report_counts(served: Served) -> None:
    """The launcher is told once; the hosts that it had stay, and what else it says is stored."""
    token, hello = served.peers.tokens.launcher("mallory"), listing("job", 4)
    stream = await opened(served, hello)
    assert await served.peers.post(REPORT, token, report(hello, 2, BUDGET + 5)) == MANY
    job = served.job("job")
    assert (len(job.observed.hosts), job.observed.revision, job.observed.restarts) == (BUDGET, 2, 2)
    assert job.observed.hosts >= {f"job-{number}" for number in range(4)}
    assert await served.peers.post(REPORT, token, report(hello, 2, BUDGET + 5)) == ACCEPTED
    assert await served.peers.post(REPORT, token, report(hello, 3, 3)) == ACCEPTED
    assert listed(served) == {"job": 3}
    assert await stream.any()


async def test_a_launcher_that_comes_back_with_a_longer_list_hears_of_its_job(
    served: Served, bystander: Bystander
) -> None:
    """Its list is cut off, which is counted; the job is not lost for that."""
    hello = listing("job", 4)
    await opened(served, hello)
    before = await refused(served)
    again = {**hello, "report": {**report(hello, 2, BUDGET + 5)}}
    await opened(served, again)
    await counted(served, before, http_too_many=1)
    assert listed(served) == {"job": BUDGET}
    assert bystander.job in served.store.snapshot().jobs


async def test_a_job_that_is_over_gives_way(served: Served) -> None:
    """What it listed is room again as soon as somebody needs it, and not before."""
    token = served.peers.tokens.launcher("mallory")
    ended, going_on = listing("ended", 5), listing("going-on", 5)
    streams = [await opened(served, hello) for hello in (ended, going_on)]
    assert await served.peers.post(REPORT, token, {**report(ended, 2, 5), "result": "failed"}) == ACCEPTED
    assert listed(served) == {"ended": 5, "going-on": 5}
    assert await served.peers.refused_or_open(STREAM, token, listing("too-large", 6)) == MANY
    assert listed(served) == {"ended": 5, "going-on": 5}
    assert await served.peers.refused_or_open(STREAM, token, listing("new", 5)) == ACCEPTED
    assert listed(served) == {"going-on": 5, "new": 5}
    assert len(streams) == 2


async def test_a_registration_that_is_refused_costs_no_other_job_its_place(served: Served) -> None:
    """It would have needed the room of a job that is over, but another token's job has the name."""
    token = served.peers.tokens.launcher("mallory")
    ended = listing("ended", BUDGET)
    await opened(served, ended)
    assert await served.peers.post(REPORT, token, {**report(ended, 2, BUDGET), "result": "failed"}) == ACCEPTED
    taken = listing("honest", BUDGET, instance="instance-2")
    assert await served.peers.post(STREAM, token, taken) == PeerRefusal(409, "name_is_live")
    assert listed(served) == {"ended": BUDGET}
    assert await served.peers.refused_or_open(STREAM, token, listing("new", BUDGET)) == ACCEPTED
    assert listed(served) == {"new": BUDGET}
