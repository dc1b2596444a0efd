"""Agents may report pods of their own node, and such a report never affects a node."""

from typing import Any

import grpc
import pytest
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.domain.ids import Host, Source
from supervisor.domain.notice import Announcement, NoticeState, Report, Subject, SubjectKind
from supervisor.ingest.agent_registry import AgentRegistry, AgentState, SourceState
from supervisor.ingest.agent_reports import MAX_PODS, PodReports
from supervisor.ingest.errors import MalformedError, TooManyError
from tests.testkit.serving import Served, hello, noticed
from tests.testkit.waiting import until

KUBERNETES = "kubernetes"


def pod(
    name: str = "space/worker-0",
    revision: int = 1,
    *,
    uid: str = "p-1",
    source: str = KUBERNETES,
    **changes: Any,
) -> wire.NoticeReport:
    report = noticed("n1", revision, **changes)
    report.source = source
    report.subject.CopyFrom(wire.Subject(kind=wire.SUBJECT_KIND_POD, name=name, uid=uid))
    return report


def watching(state: wire.SourceState.ValueType) -> wire.SourceReport:
    return wire.SourceReport(source=KUBERNETES, state=state, about=wire.SUBJECT_KIND_POD)


async def test_a_pods_notice_is_kept_and_ends_as_gone_while_the_agent_lives(served: Served) -> None:
    agent = await served.peers.agent("n1")
    await agent.say(notice=pod(left=0.2))
    assert await agent.acknowledged(1) == "kubernetes/p-1"
    assert served.notices()["space/worker-0"].subject == Subject(SubjectKind.POD, "space/worker-0", "p-1")
    await until(lambda: served.notices()["space/worker-0"].state is NoticeState.GONE)
    await agent.say(notice=pod(revision=2))
    await agent.acknowledged(2)
    assert served.notices()["space/worker-0"].state is NoticeState.GONE
    await served.agent_is("n1", connected=True)


async def test_a_pods_notice_is_withdrawn(served: Served) -> None:
    agent = served.peers.stranger(served.peers.tokens.agent("n1"))
    await agent.say(hello=hello("n1", notices=[pod()]))
    await agent.acknowledged(1)
    await agent.say(notice=pod(revision=2, withdrawn=True))
    await agent.acknowledged(2)
    assert served.notices()["space/worker-0"].state is NoticeState.WITHDRAWN


async def test_whether_an_agent_sees_its_pods_is_known(served: Served) -> None:
    agent = await served.peers.agent("n1")
    for revision, state in enumerate((wire.SOURCE_STATE_UNKNOWN, wire.SOURCE_STATE_CLEAR), 1):
        await agent.say(source=watching(state))
        await agent.say(notice=pod(revision=revision))
        await agent.acknowledged(revision)
        known = await served.agent_is("n1", connected=True)
        assert known["sources"] == [{"source": "metadata", "state": "clear"}]
        name = "unknown" if state == wire.SOURCE_STATE_UNKNOWN else "clear"
        assert known["pod_sources"] == [{"source": KUBERNETES, "state": name}]
    agent.call.cancel()
    lost = await served.agent_is("n1", connected=False)
    assert lost["pod_sources"] == [{"source": KUBERNETES, "state": "unknown"}]


@pytest.mark.parametrize("pods", list(SourceState))
def test_a_node_is_available_whatever_is_known_of_its_pods(pods: SourceState) -> None:
    """Its own sources alone count: every one of them says that there is no notice, or cannot have one."""
    agents = AgentRegistry(lambda: None, lambda: 0.0)
    stream, node = object(), Host("n1")
    view = AgentState(
        node=node,
        uid="u",
        session=1,
        connected=True,
        sources={Source("metadata"): SourceState.CLEAR},
        pod_sources={Source(KUBERNETES): SourceState.UNKNOWN},
    )
    agents.connect(view, stream)
    agents.put_source(node, stream, Source(KUBERNETES), pods, about_pods=True)
    for state in SourceState:
        agents.put_source(node, stream, Source("metadata"), state)
        assert (node in agents.clear) is (state in (SourceState.CLEAR, SourceState.NOT_SPOT))
    agents.put_source(node, stream, Source("metadata"), SourceState.NOT_SPOT)
    agents.put_source(node, stream, Source("other"), SourceState.UNKNOWN)
    assert not agents.clear


def test_only_metadata_that_were_asked_can_deny_a_reclaim() -> None:
    """A node that is not spot is available, but nobody asked it: what the API server says of it counts."""
    agents = AgentRegistry(lambda: None, lambda: 0.0)
    stream, node, sources = object(), Host("n1"), (Source("one"), Source("two"))
    agents.connect(AgentState(node=node, uid="u", session=1, connected=True), stream)
    for first in SourceState:
        for second in SourceState:
            agents.put_source(node, stream, sources[0], first)
            agents.put_source(node, stream, sources[1], second)
            assert (node in agents.denying) is (
                SourceState.CLEAR in {first, second} and {first, second} <= {SourceState.CLEAR, SourceState.NOT_SPOT}
            )
    agents.put_source(node, stream, sources[1], SourceState.CLEAR)
    agents.put_source(node, stream, sources[0], SourceState.CLEAR)
    agents.disconnect(node, stream)
    assert node not in agents.denying


async def test_a_node_that_is_not_spot_is_known_as_such(served: Served) -> None:
    agent = served.peers.stranger(served.peers.tokens.agent("n1"))
    await agent.say(hello=hello("n1", state=wire.SOURCE_STATE_NOT_SPOT))
    await agent.read("welcome")
    known = await served.agent_is("n1", connected=True)
    assert known["sources"] == [{"source": "metadata", "state": "not_spot"}]


async def test_a_new_machine_leaves_the_notices_on_pods_alone(served: Served) -> None:
    agent = await served.peers.agent("n1")
    await agent.say(notice=pod("n1/n1"))
    await agent.acknowledged(1)
    agent.call.cancel()
    again = await served.peers.agent("n1", node_uid="uid-new", session=11)
    await again.read("heartbeat")
    assert served.notices()["n1/n1"].state is NoticeState.ACTIVE


@pytest.mark.parametrize("withdrawn", [True, False])
async def test_a_pods_report_never_touches_a_nodes_notice(served: Served, *, withdrawn: bool) -> None:
    other = await served.peers.agent("n2")
    await other.say(notice=noticed("n2"))
    await other.acknowledged(1)
    before = served.notices()
    agent = await served.peers.agent("n1")
    await agent.say(notice=pod(revision=9, uid="uid-n2", source="metadata", withdrawn=withdrawn))
    await agent.acknowledged(9)
    assert {name: notice for name, notice in served.notices().items() if name == "n2"} == before


@pytest.mark.parametrize(
    "name", ["", "worker-0", "/worker-0", "space/", "space/a/b", "s" * 64 + "/a", "space/" + "a" * 254]
)
async def test_a_pod_has_a_namespace_and_a_name(served: Served, name: str) -> None:
    agent = await served.peers.agent("n1")
    await agent.say(notice=pod(name))
    assert await agent.ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert not served.notices()


def said(uid: str, kind: SubjectKind = SubjectKind.POD) -> Report:
    return Report(
        source=Source(KUBERNETES),
        subject=Subject(kind, f"space/{uid}", uid),
        session=1,
        revision=1,
        announcement=Announcement.ACTIVE,
    )


def test_an_agent_speaks_for_the_pods_of_its_node() -> None:
    """Where it is known on which node a pod is, no other agent may speak of it."""
    nodes = {"here": Host("n1"), "there": Host("n2")}
    reports = PodReports(lambda pod: nodes.get(pod.uid), lambda: ())
    for uid in ("here", "nobody-knows"):
        reports.admit(Host("n1"), said(uid))
    with pytest.raises(MalformedError, match="space/there is not on n1"):
        reports.admit(Host("n1"), said("there"))
    nodes["misnamed"] = Host("")
    with pytest.raises(MalformedError, match="space/misnamed is not on n1"):
        reports.admit(Host("n1"), said("misnamed"))


def test_what_one_agent_says_about_pods_is_bounded() -> None:
    """By what is kept of it: other agents do not feel it, and room comes back as notices are forgotten."""
    kept = {said(str(number)).id for number in range(MAX_PODS)}
    reports = PodReports(lambda _pod: None, lambda: kept)
    for number in range(MAX_PODS):
        reports.admit(Host("n1"), said(str(number)))
    with pytest.raises(TooManyError):
        reports.admit(Host("n1"), said("more"))
    reports.admit(Host("n1"), said("0"))
    reports.admit(Host("n1"), said("node", SubjectKind.NODE))
    reports.admit(Host("n2"), said("more"))
    kept.remove(said("7").id)
    reports.admit(Host("n1"), said("more"))
    kept.add(said("more").id)
    with pytest.raises(TooManyError):
        reports.admit(Host("n1"), said("7"))
    reports.forget_others([Host("n2")])
    reports.admit(Host("n1"), said("7"))
