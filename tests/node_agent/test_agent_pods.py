"""Watching the pods of a node, and its label."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from node_agent.node import NodeWatch, ThisNode
from node_agent.notices import AnnouncementState, NoticeId, NoticeReport, NoticeSubjectKind, PollResult, ReportedSource
from node_agent.outbox import NoticeOutbox
from node_agent.pods import PodWatch
from node_agent.poller import Poller
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.server import ApiServer
from tests.node_agent.fake_api_server import fake_api_server
from tests.node_agent.pod_manifests import disruption, manifest
from tests.node_agent.test_agent_poller import NOTICE, ScriptedSource
from tests.testkit.waiting import until

EVICTED = disruption("EvictionByEvictionAPI")
LABEL = "node.alibabacloud.com/spot-strategy"


@asynccontextmanager
async def running(*loops: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(loop()) for loop in loops]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def shown(*conditions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(manifest(*conditions, **changes))
    return value


def status(outbox: NoticeOutbox) -> ReportedSource:
    (only,) = outbox.statuses()
    return only


def reports(outbox: NoticeOutbox) -> dict[str, NoticeReport]:
    return {report.subject.name: report for report in outbox.reports()}


async def test_a_pod_is_reported_until_it_is_gone_and_that_is_durable() -> None:
    """What is gone needs not be said again, but what nobody has acknowledged does."""
    async with fake_api_server() as (fake, server):
        outbox = NoticeOutbox(10)
        pods = PodWatch(server, "n1", outbox, ClusterClock(Clock()), Bulkhead(Clock()))
        fake.put("pods", shown())
        async with running(pods.reflector.run, pods.run):
            await until(lambda: status(outbox).state is PollResult.CLEAR)
            assert not reports(outbox)
            fake.put("pods", shown(EVICTED))
            await until(lambda: "space/worker-0" in reports(outbox))
            first = reports(outbox)["space/worker-0"]
            fake.remove("pods", "worker-0")
            # The next under that name is another pod.
            fake.put("pods", shown(EVICTED, uid="another", name="worker-1"))
            await until(lambda: "space/worker-1" in reports(outbox))
            assert first in outbox.unacknowledged()
            outbox.acknowledge(first.id, first.revision)
            assert set(reports(outbox)) == {"space/worker-1"}
            second = reports(outbox)["space/worker-1"]
            outbox.acknowledge(second.id, second.revision)
            assert set(reports(outbox)) == {"space/worker-1"}
            fake.remove("pods", "worker-1")
            await until(lambda: not reports(outbox))
    assert fake.selections == {("pods", "spec.nodeName=n1")}


async def test_a_pod_under_an_old_name_is_another() -> None:
    """Also where the change is seen in one: the list after an outage shows only the new one."""
    async with fake_api_server() as (fake, server):
        outbox = NoticeOutbox(10)
        pods = PodWatch(server, "n1", outbox, ClusterClock(Clock()), Bulkhead(Clock()))
        fake.put("pods", shown(EVICTED, uid="old"))
        async with running(pods.reflector.run):
            await until(outbox.unacknowledged)
            outbox.acknowledge(NoticeId("kubernetes/old"), 1)
            fake.leave()
            fake.put("pods", shown(EVICTED, uid="new"))
            fake.away = False
            await until(lambda: [report.subject.uid for report in outbox.reports()] == ["new"])
            assert outbox.reports()[0].revision == 1


async def test_while_the_watch_is_down_the_pods_are_unknown() -> None:
    """With the reason; what was known of them stays, and what happened meanwhile is found out."""
    async with fake_api_server() as (fake, server):
        outbox = NoticeOutbox(10)
        pods = PodWatch(server, "n1", outbox, ClusterClock(Clock()), Bulkhead(Clock()))
        assert (status(outbox).state, status(outbox).detail) == (PollResult.UNKNOWN, "not listed yet")
        for name in ("known", "later"):
            fake.put("pods", shown(name=name, uid=name))
        fake.put("pods", shown(EVICTED, name="known", uid="known"))
        async with running(pods.reflector.run, pods.run):
            await until(lambda: status(outbox).state is PollResult.CLEAR)
            good = status(outbox).last_good
            fake.leave()
            await until(lambda: status(outbox).state is PollResult.UNKNOWN)
            assert status(outbox).detail == "away"
            assert status(outbox).about is NoticeSubjectKind.POD
            assert status(outbox).last_good == pytest.approx(good, abs=20.0)
            assert set(reports(outbox)) == {"space/known"}
            fake.put("pods", shown(EVICTED, name="later", uid="later"))
            fake.away = False
            await until(lambda: set(reports(outbox)) == {"space/known", "space/later"})
            await until(lambda: status(outbox).state is PollResult.CLEAR)
        assert pods.watchdog.alive


async def test_a_node_is_idle_only_while_it_is_known_that_no_opted_in_pod_runs() -> None:
    async with fake_api_server() as (fake, server):
        pods = PodWatch(server, "n1", NoticeOutbox(10), ClusterClock(Clock()), Bulkhead(Clock()))
        fake.put("pods", shown(name="other", uid="other", annotations={}))
        assert not pods.is_idle()
        async with running(pods.reflector.run):
            await until(pods.is_idle)
            fake.put("pods", shown())
            await until(lambda: not pods.is_idle())
            fake.put("pods", shown(phase="Succeeded"))
            await until(pods.is_idle)
            fake.leave()
            await until(lambda: not pods.is_idle())


async def test_what_finds_no_room_is_offered_again() -> None:
    """A full outbox loses nothing, and a pod that is gone meanwhile needs none."""
    async with fake_api_server() as (fake, server):
        outbox = NoticeOutbox(1)
        pods = PodWatch(server, "n1", outbox, ClusterClock(Clock()), Bulkhead(Clock()))
        async with running(pods.reflector.run, pods.run):
            for name in ("first", "second", "third"):
                fake.put("pods", shown(EVICTED, name=name, uid=name))
            await until(lambda: set(reports(outbox)) == {"space/first"})
            fake.put("pods", shown(EVICTED, deleted=0, name="third", uid="third"))
            await until(lambda: status(outbox).state is PollResult.CLEAR)
            fake.remove("pods", "second")
            fake.remove("pods", "first")
            outbox.acknowledge(NoticeId("kubernetes/first"), 1)
            await until(lambda: set(reports(outbox)) == {"space/third"})
            assert reports(outbox)["space/third"].announced is not None


async def test_the_seconds_left_are_the_api_servers() -> None:
    """Its clock may be far from the agent's: 20 of the 30 seconds are over there."""
    clock = Clock()
    cluster_clock = ClusterClock(clock)
    async with fake_api_server(cluster_clock) as (fake, server):
        fake.date = "Sat, 21 Nov 2026 12:00:20 GMT"
        fake.put("pods", shown(EVICTED, deleted=0))
        outbox = NoticeOutbox(10)
        async with running(PodWatch(server, "n1", outbox, cluster_clock, Bulkhead(Clock())).reflector.run):
            await until(outbox.unacknowledged)
            deadline = outbox.reports()[0].deadline
            assert deadline is not None
            assert 1.0 < deadline - clock.monotonic() <= 10.0


async def test_a_withdrawal_is_said_until_it_is_durable() -> None:
    async with fake_api_server() as (fake, server):
        outbox = NoticeOutbox(10)
        pods = PodWatch(server, "n1", outbox, ClusterClock(Clock()), Bulkhead(Clock()))
        async with running(pods.reflector.run):
            fake.put("pods", shown(disruption("PreemptionByScheduler")))
            await until(outbox.unacknowledged)
            fake.put("pods", shown(disruption("PreemptionByScheduler", status="False")))
            await until(lambda: outbox.reports()[0].announcement is AnnouncementState.WITHDRAWN)
            outbox.acknowledge(outbox.reports()[0].id, outbox.reports()[0].revision)
            assert not outbox.reports()
            fake.put("pods", shown(EVICTED))
            await until(outbox.unacknowledged)
            assert outbox.reports()[0].revision == 3


def node(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "uid": "node-uid", "labels": {"much": "more", **labels}}, "status": {}}


@asynccontextmanager
async def polling(
    server: ApiServer, source: ScriptedSource, uid: str = ""
) -> AsyncIterator[tuple[NoticeOutbox, ThisNode]]:
    """A poller on a node whose label says whether it is spot."""
    outbox, this = NoticeOutbox(10), ThisNode("n1", uid)
    watch = NodeWatch(server, this, (f"{LABEL}=NoSpot", "other=never"), Clock(), Bulkhead(Clock()))
    poller = Poller(source, this, outbox, Clock(), 0.05, bulkhead=Bulkhead(Clock()), spot=watch.object)
    async with running(watch.reflector.run, poller.run):
        yield outbox, this


@pytest.mark.parametrize("label", [{LABEL: "NoSpot"}, {"other": "never"}])
@pytest.mark.parametrize("uid", ["", "machine-1"])
async def test_a_node_that_is_not_spot_is_not_asked_about(label: dict[str, str], uid: str) -> None:
    """Not once; it is known by its uid in the cluster where nobody tells another."""
    async with fake_api_server() as (fake, server):
        fake.put("nodes", node(**label))
        source = ScriptedSource(NOTICE)
        async with polling(server, source, uid) as (outbox, this):
            await until(lambda: status(outbox).state is PollResult.NOT_SPOT)
            name, value = next(iter(label.items()))
            assert status(outbox).detail == f"the node is not spot: {name}={value}"
            assert this.subject is not None
            assert this.subject.uid == (uid or "node-uid")
            assert not outbox.reports()
        assert source.polls == 0
    assert fake.selections == {("nodes", "metadata.name=n1")}


@pytest.mark.parametrize("label", [{}, {LABEL: "SpotAsPriceGo"}])
async def test_any_other_node_is(label: dict[str, str]) -> None:
    """Also one without the label; and when the label comes or goes, polling ends or begins."""
    async with fake_api_server() as (fake, server):
        fake.put("nodes", node(**label))
        source = ScriptedSource(NOTICE)
        async with polling(server, source, uid="machine-1") as (outbox, this):
            await until(lambda: status(outbox).state is PollResult.NOTICED)
            fake.put("nodes", node(**{LABEL: "NoSpot"}))
            await until(lambda: status(outbox).state is PollResult.NOT_SPOT)
            # What was announced stays: a label takes nothing back.
            assert [each.announcement for each in outbox.reports()] == [AnnouncementState.ACTIVE]
            fake.remove("nodes", "n1")
            fake.put("nodes", node(**label))
            await until(lambda: status(outbox).state is PollResult.NOTICED)
            assert this.subject is not None
            assert this.subject.uid == "machine-1"


async def test_where_nobody_tells_the_label_the_source_is_asked() -> None:
    """A poll too many costs less than a missed notice; it waits two seconds at most."""
    async with fake_api_server() as (fake, server):
        fake.leave()
        source = ScriptedSource(NOTICE)
        async with polling(server, source, uid="machine-1") as (outbox, _):
            await until(lambda: status(outbox).state is PollResult.NOTICED)
