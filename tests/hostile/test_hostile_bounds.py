"""Everything that one valid token can make the supervisor store is bounded, and other clients do not notice."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import pytest
from reclaim.v1 import reclaim_pb2 as wire
from reclaim.v1.reclaim_pb2_grpc import ReclaimServiceStub

from supervisor.domain.ids import JobName
from supervisor.domain.job import Result, SupervisedJob
from supervisor.fanout.processes import MAX_STREAMS
from tests.hostile.hostile_world import Bystander, agent_refused, counted, refused, said
from tests.supervisor.decide.decide_builders import waiting_job
from tests.testkit.serving import AgentPeer, PeerRefusal, Served, full_disk, hello, launcher_hello, noticed

STREAM = "/v1/launchers/stream"
PROCESSES = "/v1/processes/stream"
MANY_OVER_HTTP = PeerRefusal(429, "too_many")
MANY = (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many")
MAX_JOBS = 1000
MAX_NOTICES = 256
MAX_WAITING = 1280
PODS: dict[str, Any] = {"source": "pods", "revision": 1, "announcement": wire.ANNOUNCEMENT_ACTIVE, "seconds_left": 60.0}

pytestmark = pytest.mark.usefixtures("bystander")


async def test_endless_machines_of_one_node_are_bounded(served: Served) -> None:
    """256 notices of a node are kept and then no more; that they end makes room after a day."""
    token = served.peers.tokens.agent("n1")
    for number in range(MAX_NOTICES + 1):
        agent = served.peers.stranger(token)
        uid = f"uid-{number}"
        report = noticed("n1", uid=uid)
        await agent.call.write(
            wire.AgentMessage(hello=hello("n1", node_uid=uid, session=10 + number, notices=[report]))
        )
        await agent.acknowledged(1)
        agent.call.cancel()
    before, stored = await refused(served), served.store.snapshot()
    assert await agent_refused(served.peers, token, said("n1", node_uid="another", session=1000)) == MANY
    await counted(served, before, grpc_too_many=1)
    assert served.store.snapshot().notices == stored.notices
    assert len(stored.notices) == MAX_NOTICES + 1


async def test_reports_that_wait_for_a_disk_are_bounded(served: Served) -> None:
    """An agent that makes up pods while nothing can be made durable fills no memory; what it said goes with it."""
    agent = await served.peers.agent("n1", silent=True)
    await full_disk(served.store, full=True)
    before = await refused(served)
    for number in range(MAX_WAITING + 1):
        subject = wire.Subject(kind=wire.SUBJECT_KIND_POD, name=f"default/pod-{number}", uid=f"uid-{number}")
        await agent.say(notice=wire.NoticeReport(**PODS, subject=subject))
    async with asyncio.timeout(60):  # Each of them is tried, and the end comes after all heartbeats.
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(await agent.call.read(), wire.SupervisorMessage):
                pass
        assert await agent.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await counted(served, before, grpc_too_many=1, grpc_not_serving=MAX_WAITING)
    await full_disk(served.store, full=False)
    await (await served.peers.agent("n1", session=11)).notices("n1")
    assert list(served.notices()) == ["n1"]


async def test_a_source_that_never_settles_fills_no_disk(served: Served) -> None:
    agent = await served.peers.agent("n1")
    for revision in range(1, 241):
        await agent.notices("n1", revision=revision, withdrawn=revision % 2 == 0)
    assert served.notices()["n1"].episode == 120
    query = "SELECT count(*), min(episode) FROM notices WHERE id = 'metadata/n1/uid-n1'"
    rows = served.store._connection.execute(query).fetchall()
    assert rows == [(100, 21)]


async def test_an_agent_that_does_not_read_is_given_up(served: Served) -> None:
    """Within its silence: it is gone, as it cannot be told anything; another stream on its connection goes on."""
    before = await refused(served)
    async with unread(served) as connect:
        beside, stuck = connect("n2"), connect("n1")
        for agent, node in ((beside, "n2"), (stuck, "n1")):
            await agent.call.write(said(node, node_uid="u" * 253))
        await beside.read("welcome")
        alive = [asyncio.create_task(beside.live()), asyncio.create_task(reads_on(beside))]
        for revision in range(1, 4):
            report = noticed("n1", revision, uid="u" * 253)
            report.source = "s" * 253
            await stuck.say(notice=report)
        await counted(served, before, grpc_slow_reader=1)
        await served.agent_is("n1", connected=False)
        await served.agent_is("n2", connected=True)
        for task in alive:
            assert not task.done()
            task.cancel()


async def reads_on(agent: AgentPeer) -> None:
    while True:
        await agent.read("heartbeat")


@asynccontextmanager
async def unread(served: Served) -> AsyncIterator[Callable[[str], AgentPeer]]:
    """A connection whose streams take next to nothing that is not read, and what opens one for a node's agent."""
    options = (("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(served.peers.grpc, options=options) as channel:
        stub: Any = ReclaimServiceStub(channel)

        def connect(node: str) -> AgentPeer:
            token = served.peers.tokens.agent(node)
            return AgentPeer(stub.Connect(metadata=(("authorization", f"Bearer {token}"),)))

        yield connect


async def test_a_rank_that_changes_without_end_leaves_nothing_behind(served: Served, bystander: Bystander) -> None:
    """Latest wins; what a process is told does not depend on how often it asked."""
    await served.peers.agent("n1")
    _, order = await served.peers.running("flapping", ["n1"])
    process = await served.peers.process(order["token"], "n1", 0)
    told = await process.lines.any()
    stored = served.store.snapshot()
    for number in range(200):
        assert await process.reports("rank", told, rank=number % 2) == PeerRefusal(200, None)
        assert await process.reports("rank", told, process=f"nobody-{number}") == PeerRefusal(200, None)
    assert served.store.snapshot() is stored
    assert await process.lines.before_heartbeat() == []
    assert bystander.job in stored.jobs


async def test_the_jobs_of_a_launcher_are_bounded(served: Served) -> None:
    """1,000 of one token: one that is over makes room, but none that goes on."""
    token = served.peers.tokens.launcher("mallory")
    await asyncio.gather(
        *(
            served.store.put_job(JobName(f"job-{number}"), partial(going_on, f"job-{number}"))
            for number in range(MAX_JOBS)
        )
    )
    before, hello = await refused(served), launcher_hello("one-more", [])
    assert await served.peers.post(STREAM, token, hello) == MANY_OVER_HTTP
    await counted(served, before, http_too_many=1)
    await served.store.put_job(JobName("job-7"), ended)
    assert await served.peers.refused_or_open(STREAM, token, hello) == PeerRefusal(200, None)
    own = {name for name, job in served.store.snapshot().jobs.items() if job.observed.launcher == "mallory"}
    assert len(own) == MAX_JOBS
    assert own >= {"one-more", "job-8"}
    assert "job-7" not in own


def going_on(name: str, _known: SupervisedJob | None) -> SupervisedJob:
    """A job of mallory's that cannot be said to be idle."""
    job = waiting_job(listed=frozenset(), name=name, since=time.time() + 60)
    return replace(job, observed=replace(job.observed, launcher="mallory"))


def ended(known: SupervisedJob | None) -> SupervisedJob:
    """The job as it is when its launcher has said so."""
    assert known is not None
    return replace(known, observed=replace(known.observed, result=Result.FAILED))


async def test_the_streams_of_a_job_are_bounded(
    served: Served, bystander: Bystander, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.fanout.processes.MAX_STREAMS", 2)
    assert MAX_STREAMS > 2
    before = await refused(served)
    who = {"process": "another", "host": "n1", "rank": 5, "pid": 1}
    await served.peers.lines(PROCESSES, bystander.process.token, who)
    assert await served.peers.post(PROCESSES, bystander.process.token, {**who, "process": "third"}) == MANY_OVER_HTTP
    await counted(served, before, http_too_many=1)
