"""What nobody foresaw in one source, cloud, pod, report or stream stays there, and the agent serves the others."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from reclaim.v1 import reclaim_pb2 as pb

from node_agent import pods as pods_module
from node_agent.discovery import NO_CLOUD
from node_agent.metrics import AgentMetrics
from node_agent.node import ThisNode
from node_agent.notices import (
    AnnouncementState,
    Clear,
    NoticeReport,
    NoticeSubject,
    NoticeSubjectKind,
    PollResult,
    ReportedSource,
    SourceName,
)
from node_agent.outbox import NoticeOutbox
from node_agent.pods import PodWatch, WatchedPod
from node_agent.poller import Poller
from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.clock import ClusterClock
from servicekit.spot import PodReclaim, Withdrawn
from tests.node_agent.fake_api_server import fake_api_server
from tests.node_agent.fake_supervisor import FakeAgentService, fake_supervisor
from tests.node_agent.test_agent_discovery import DiscoveryScene
from tests.node_agent.test_agent_pods import EVICTED, reports, running, shown
from tests.node_agent.test_agent_poller import NOTICE, ScriptedSource
from tests.node_agent.test_agent_uplink import NODE, UplinkAgent
from tests.testkit.waiting import until

UNFORESEEN = ZeroDivisionError("nobody foresaw this")


@pytest_asyncio.fixture
async def bulkhead() -> Bulkhead:
    return Bulkhead(Clock())


@pytest_asyncio.fixture
async def supervisor() -> AsyncIterator[FakeAgentService]:
    async with fake_supervisor() as one:
        yield one


@pytest_asyncio.fixture
async def agent(supervisor: FakeAgentService, tmp_path: Path) -> AsyncIterator[UplinkAgent]:
    (tmp_path / "token").write_text("secret")
    one = UplinkAgent(Address("127.0.0.1", supervisor.port), tmp_path / "token")
    yield one
    await one.stop()


def states(outbox: NoticeOutbox) -> dict[str, PollResult]:
    return {status.source: status.state for status in outbox.statuses()}


async def test_a_source_that_raises_is_unknown_and_the_others_are_polled(bulkhead: Bulkhead) -> None:
    """Also one that was clear before; and the next answer that can be handled counts."""
    outbox = NoticeOutbox(10)
    broken, other = ScriptedSource(Clear()), ScriptedSource(NOTICE)
    other.name = SourceName("other")
    pollers = [_poller(source, outbox, bulkhead) for source in (broken, other)]
    async with running(*(each.run for each in pollers)):
        await until(lambda: states(outbox)["script"] is PollResult.CLEAR)
        broken.answers = [UNFORESEEN]
        await until(lambda: states(outbox)["script"] is PollResult.UNKNOWN)
        polls = other.polls
        await until(lambda: other.polls > polls + 2)
        assert states(outbox)["other"] is PollResult.NOTICED
        broken.answers = [NOTICE]
        await until(lambda: {report.source for report in outbox.reports()} == {"script", "other"})
    assert set(+bulkhead.counts) == {"source"}


def _poller(source: ScriptedSource, outbox: NoticeOutbox, bulkhead: Bulkhead) -> Poller:
    node = ThisNode(NODE.name, NODE.uid)
    return Poller(source, node, outbox, Clock(), 0.02, bulkhead=bulkhead)


async def test_a_cloud_that_raises_hides_no_other_one() -> None:
    scene = DiscoveryScene()
    scene.aws.says, scene.gcp.says = UNFORESEEN, True
    assert await scene.discovery.run() is scene.gcp


async def test_a_cloud_that_raises_does_not_count_as_absent() -> None:
    """Else its node would take workers as one without a cloud, where nothing is announced."""
    scene = DiscoveryScene()
    scene.aws.says = UNFORESEEN
    await scene.rounds(10)
    assert NO_CLOUD not in scene.states


async def test_a_pod_that_raises_is_tried_again_and_the_others_are_reported(
    monkeypatch: pytest.MonkeyPatch, bulkhead: Bulkhead
) -> None:
    """While it is, nobody may think that all pods are seen."""
    broken = {"bad"}

    def classify(pod: WatchedPod) -> PodReclaim | Withdrawn | None:
        if pod.metadata.name in broken:
            raise UNFORESEEN
        return classified(pod)

    classified = pods_module.classify
    monkeypatch.setattr(pods_module, "classify", classify)
    async with fake_api_server() as (api, server):
        outbox = NoticeOutbox(10)
        pods = PodWatch(server, "n1", outbox, ClusterClock(Clock()), bulkhead)
        for name in ("bad", "good"):
            api.put("pods", shown(EVICTED, name=name, uid=name))
        async with running(pods.reflector.run, pods.run):
            await until(lambda: set(reports(outbox)) == {"space/good"})
            await until(lambda: "internal error with 1 pods" in outbox.statuses()[0].detail)
            assert states(outbox) == {"kubernetes": PollResult.UNKNOWN}
            broken.clear()
            await until(lambda: set(reports(outbox)) == {"space/good", "space/bad"})
            await until(lambda: states(outbox) == {"kubernetes": PollResult.CLEAR})
    assert set(+bulkhead.counts) == {"pods"}


async def test_a_pod_that_raised_and_is_gone_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, bulkhead: Bulkhead
) -> None:
    def classify(_pod: WatchedPod) -> PodReclaim | Withdrawn | None:
        raise UNFORESEEN

    monkeypatch.setattr(pods_module, "classify", classify)
    async with fake_api_server() as (api, server):
        outbox = NoticeOutbox(10)
        pods = PodWatch(server, "n1", outbox, ClusterClock(Clock()), bulkhead)
        api.put("pods", shown(EVICTED, name="bad", uid="bad"))
        async with running(pods.reflector.run, pods.run):
            await until(lambda: "internal error" in outbox.statuses()[0].detail)
            api.remove("pods", "bad")
            await until(lambda: states(outbox) == {"kubernetes": PollResult.CLEAR})


_UNWRITABLE = "\udcff"
"""Half of a character: text of the operating system may have it, and no message can."""


async def test_a_report_that_cannot_be_sent_holds_up_no_other_one(
    supervisor: FakeAgentService, agent: UplinkAgent
) -> None:
    """Neither in the hello nor after it; its source is noticed all the same."""
    bad, good = _report("bad", _UNWRITABLE), _report("good")
    agent.outbox.put(bad)
    agent.outbox.put(good)
    agent.outbox.set_status(ReportedSource(SourceName("s"), PollResult.NOTICED))
    agent.start()
    await until(lambda: agent.outbox.unacknowledged() == [bad])
    assert [notice.subject.uid for notice in supervisor.streams[0].hello.notices] == ["good"]
    assert [source.state for source in supervisor.streams[0].hello.sources] == [pb.SOURCE_STATE_NOTICED]
    agent.outbox.put(replace(bad, revision=2))
    agent.outbox.put(replace(good, revision=2))
    await until(lambda: [notice.revision for notice in supervisor.streams[0].notices] == [2])
    agent.outbox.put(replace(bad, revision=3, message="mended"))
    await until(lambda: not agent.outbox.unacknowledged())
    assert set(+agent.bulkhead.counts) == {"report"}
    assert len(supervisor.streams) == 1


async def test_a_state_that_cannot_be_sent_is_sent_as_unknown(supervisor: FakeAgentService, agent: UplinkAgent) -> None:
    """Left out, it would leave the node clear by its other sources."""
    agent.outbox.set_status(ReportedSource(SourceName("s"), PollResult.CLEAR, detail=_UNWRITABLE))
    agent.outbox.set_status(ReportedSource(SourceName("t"), PollResult.CLEAR))
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    said = {source.source: source.state for source in supervisor.streams[0].hello.sources}
    assert said == {"s": pb.SOURCE_STATE_UNKNOWN, "t": pb.SOURCE_STATE_CLEAR}


def _report(uid: str, message: str = "") -> NoticeReport:
    about = NoticeSubject(NoticeSubjectKind.POD, f"space/{uid}", uid)
    return NoticeReport(SourceName("s"), about, 1, AnnouncementState.ACTIVE, message=message)


class _FailingOutbox(NoticeOutbox):
    """An outbox that cannot be read twice."""

    failures = 2

    def statuses(self) -> Sequence[ReportedSource]:
        if self.failures:
            self.failures -= 1
            raise UNFORESEEN
        return super().statuses()


async def test_a_stream_that_raises_is_opened_again(agent: UplinkAgent) -> None:
    """With a pause that grows, and the reason is shown."""
    agent.uplink._outbox = _FailingOutbox(10)
    agent.start()
    await until(lambda: agent.uplink.fault.reason)
    await until(lambda: agent.uplink.welcomed)
    assert agent.bulkhead.counts == {"uplink": 2}
    assert agent.uplink.fault.reason is None


async def test_each_part_that_failed_is_counted(agent: UplinkAgent) -> None:
    """From 0, as the first increase would not be seen otherwise."""
    metrics = AgentMetrics("0", agent.clock, agent.bulkhead)
    metrics.observe(agent.outbox, agent.uplink)
    agent.bulkhead.note("pods", UNFORESEEN)

    def value(where: str) -> float | None:
        return metrics.registry.get_sample_value("node_agent_internal_errors_total", {"where": where})

    assert (value("pods"), value("source"), value("uplink")) == (1, 0, 0)
