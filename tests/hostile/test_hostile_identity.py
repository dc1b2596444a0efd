"""Two nodes that say one uid, by a copied setting or in malice: each is heard, and nobody is silenced."""

import asyncio

import pytest
import structlog
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeState
from tests.testkit.serving import Served, noticed
from tests.testkit.waiting import until

UID = "one-uid"
NODES = ["n1", "n2"]


async def test_two_nodes_with_one_uid_are_both_heard(served: Served) -> None:
    """Whoever spoke first does not own the uid; both notices are durable, and both streams go on."""
    agents = {node: await served.peers.agent(node, node_uid=UID) for node in NODES}
    for node, agent in agents.items():
        await agent.say(notice=noticed(node, uid=UID))
        # The agent knows its report by source and uid, whatever others say.
        assert await agent.acknowledged(1) == f"metadata/{UID}"
    assert {node: notice.state for node, notice in served.notices().items()} == dict.fromkeys(NODES, NoticeState.ACTIVE)
    for agent in agents.values():
        await agent.read("heartbeat")


async def test_a_notice_is_not_withdrawn_by_who_shares_its_uid(served: Served) -> None:
    honest = await served.peers.agent("n1", node_uid=UID)
    await honest.notices("n1", uid=UID)
    other = await served.peers.agent("n2", node_uid=UID, session=2**62)
    await other.say(notice=noticed("n2", 2**62, uid=UID, withdrawn=True))
    await other.acknowledged(2**62)
    assert served.notices()["n1"].state is NoticeState.ACTIVE
    await honest.notices("n1", uid=UID, revision=2, left=30.0)
    assert served.notices()["n1"].revision == 2


async def test_a_job_is_told_although_another_node_took_its_uid_first(served: Served) -> None:
    """The squatter announces itself with the uid; the job on the honest node leaves it out in time all the same."""
    squatter = await served.peers.agent("n9", node_uid="uid-n1")
    await squatter.notices("n9", uid="uid-n1", left=300.0)
    agents = await served.peers.agents(NODES)
    launcher = await served.peers.launcher("job", NODES, min_workers=1)
    order = await launcher.lines.matching(type="order", order="run")
    await launcher.reports(run=order["run"], running=True, applied=order["generation"])
    await agents["n1"].notices("n1")
    assert await launcher.lines.matching(type="order", exclusions=["n1"])
    await until(lambda: served.job("job").decision.phase is Phase.SHRINKING)


@pytest.mark.parametrize("node", ["ns/pod", "ns%2Fpod"])
async def test_a_node_is_not_taken_for_a_pod(served: Served, node: str) -> None:
    """Ids have no slash of a name in them: a node and a pod, or two nodes, never meet in one notice."""
    pods = await served.peers.agent("n1")
    pod = wire.Subject(kind=wire.SUBJECT_KIND_POD, name="ns/pod", uid=UID)
    await pods.say(
        notice=wire.NoticeReport(source="metadata", subject=pod, revision=1, announcement=wire.ANNOUNCEMENT_ACTIVE)
    )
    await pods.acknowledged(1)
    agent = await served.peers.agent(node, node_uid=UID)
    await agent.notices(node, uid=UID)
    assert len(served.store.snapshot().notices) == 2


async def test_two_drills_on_nodes_with_one_uid_are_two(served: Served) -> None:
    await asyncio.gather(*(served.peers.agent(node, node_uid=UID) for node in NODES))
    operator = served.peers.tokens.operator("ann")
    for node in NODES:
        assert (await served.peers.post("/v1/drills", operator, {"node": node, "lead_seconds": 60})).status == 200
    assert set(served.notices()) == set(NODES)


async def test_a_shared_uid_is_warned_of_at_connect_and_shown_until_one_of_them_leaves(served: Served) -> None:
    """In the log, in the status, and on its page; a third node with a uid of its own is not concerned."""
    await served.peers.agent("n3")
    await served.peers.agent("n1", node_uid=UID)
    with structlog.testing.capture_logs() as lines:
        second = await served.peers.agent("n2", node_uid=UID)
    assert [line for line in lines if line["event"] == "agent.uid_shared"] == [
        {"event": "agent.uid_shared", "log_level": "warning", "node": "n2", "uid": UID, "others": ["n1"], "count": 1}
    ]
    shown = {agent["node"]: agent["same_uid"] for agent in (await served.status())["agents"]}
    assert shown == {"n1": ["n2"], "n2": ["n1"], "n3": []}
    await second.say(goodbye=wire.Goodbye())
    await served.agent_is("n2", connected=False)
    assert not [agent for agent in (await served.status())["agents"] if agent["same_uid"]]


async def test_one_node_that_connects_again_shares_its_uid_with_nobody(served: Served) -> None:
    with structlog.testing.capture_logs() as lines:
        await served.peers.agent("n1", node_uid=UID)
        await served.peers.agent("n1", node_uid=UID, session=11)
        await served.peers.agent("n1", node_uid="another", session=12)
        await served.peers.agent("n2", node_uid=UID)
    assert not [line for line in lines if line["event"] == "agent.uid_shared"]
    assert not [agent for agent in (await served.status())["agents"] if agent["same_uid"]]
