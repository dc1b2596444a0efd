"""The reconciler writes the API server's signals to the store, in bounded numbers, and retries failures."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from servicekit.bulkhead import Bulkhead, FaultPlace
from servicekit.clock import Clock
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.events import ClusterEvents
from supervisor.cluster.objects import Pod
from supervisor.cluster.view import ClusterView
from supervisor.decide.notices import Signal
from supervisor.decide.policy import Policy
from supervisor.domain.ids import NoticeId
from supervisor.domain.notice import EVENT_REASON, LEAD_ANNOTATION, NoticeState, ReclaimNotice
from supervisor.ingest.cluster import signals
from supervisor.ingest.cluster.reconciler import SignalReconciler
from supervisor.ingest.cluster.signals import pod_signal
from supervisor.store.interface import NoticeChange, StoreUnavailableError
from supervisor.store.sqlite import SqliteStore
from tests.supervisor.store.store_behaviour import opened

_AHEAD = 3600.0
"""Seconds by which the cluster's clock is ahead of ours."""


class _Store(SqliteStore):
    """A store that can be away, and counts what is asked of it."""

    away = False
    writes = 0
    under_way = 0
    most = 0

    async def put_notice(self, key: NoticeId, change: NoticeChange) -> ReclaimNotice | None:
        self.writes += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0)
            if self.away:
                raise StoreUnavailableError("away")
            return await super().put_notice(key, change)
        finally:
            self.under_way -= 1


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(Clock().now() + _AHEAD + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _pod(name: str, version: int = 7, status: str = "True") -> dict[str, Any]:
    condition = {"type": "ContainerInstanceExpired", "status": status, "lastTransitionTime": _instant(-10)}
    annotations = {"job-supervisor.kube-ai.io/spot-instance": "true"}
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "annotations": annotations}, "status": {"conditions": [condition]}}


def _node(name: str, made: float) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"{name}-uid", "resourceVersion": "7", "creationTimestamp": _instant(made)}
    return {"metadata": metadata}


def _event(name: str, node: str, made: float, namespace: str = "default") -> dict[str, Any]:
    """An Event about a node, as a node problem detector writes it: the node's name stands for its uid."""
    metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "7"}
    return {
        "metadata": {**metadata, "creationTimestamp": _instant(made)},
        "involvedObject": {"kind": "Node", "name": node, "uid": node},
        "reason": "Soon",
        "lastTimestamp": _instant(made),
    }


@dataclass
class _Cluster:
    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    version: int = 10

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.version += 1
        listed = self.lists.get(request.path.rsplit("/", 1)[-1], [])
        asked = dict([field.split("=") for field in request.query.get("fieldSelector", "").split(",") if field])
        items = [each for each in listed if asked.items() <= {"reason": each.get("reason")}.items()]
        date = datetime.fromtimestamp(Clock().now() + _AHEAD, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        body = {"metadata": {"resourceVersion": str(self.version)}, "items": items}
        return web.json_response(body, headers={"Date": date})


@dataclass
class _Scene:
    cluster: _Cluster
    view: ClusterView
    events: tuple[ClusterEvents, ...]
    words: SignalReconciler
    store: _Store

    async def listed(self, **lists: list[dict[str, Any]]) -> bool:
        """The cluster is like that, and is taken in; whether all of it is durable."""
        self.cluster.lists = lists
        for reflector in (*self.view.reflectors, *(each for kind in self.events for each in kind.reflectors.values())):
            await reflector.list()
        return await self.words.once(self.store) is None

    def states(self) -> dict[str, NoticeState]:
        return {key: notice.state for key, notice in self.store.snapshot().notices.items()}


@asynccontextmanager
async def _scene(directory: Path) -> AsyncIterator[_Scene]:
    cluster = _Cluster()
    application = web.Application()
    application.router.add_route("GET", "/{path:.*}", cluster.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    clock = Clock()
    time = ClusterClock(clock)
    kubeconfig = _kubeconfig(directory, runner.addresses[0][1])
    server = await ApiServer.connect(kubeconfig, 5.0, on_date=time.observe)
    view = ClusterView(server, frozenset(), clock, lambda: None, Bulkhead(Clock()))
    events = ClusterEvents(server, {"Soon": 60.0}, clock, Bulkhead(Clock()))
    drills = ClusterEvents(server, {EVENT_REASON: 0.0}, clock, Bulkhead(Clock()))
    words = SignalReconciler(
        view,
        events,
        Policy(),
        clock,
        time.now,
        drills=drills,
        taint_leads={"gone/soon": 60.0},
        bulkhead=Bulkhead(Clock()),
    )
    try:
        async with opened(lambda: _Store.open(directory / "store")) as store:
            yield _Scene(cluster, view, (events, drills), words, store)
    finally:
        await server.close()
        await runner.cleanup()


def _kubeconfig(directory: Path, port: int) -> str:
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    file = directory / "kubeconfig"
    file.write_text(json.dumps(content))
    return str(file)


async def test_instants_are_read_by_the_clock_of_the_api_server(tmp_path: Path) -> None:
    async with _scene(tmp_path) as one:
        begun = Clock().now()
        assert await one.listed(pods=[_pod("p")])
        deadline = one.store.snapshot().notices[NoticeId("pod-condition/ns/p/p")].deadline
        assert deadline is not None
        assert begun + 168 < deadline < Clock().now() + 172


async def test_only_news_are_written_and_few_at_a_time(tmp_path: Path) -> None:
    """A hundred pods at once leave half of the connection to others; the same pods again cost nothing."""
    names = [f"p{number}" for number in range(100)]
    async with _scene(tmp_path) as one:
        assert await one.listed(pods=[_pod(name) for name in names])
        assert one.states() == {f"pod-condition/ns/{name}/{name}": NoticeState.ACTIVE for name in names}
        assert (one.store.writes, one.store.most) == (100, 16)
        at_first = one.cluster.lists["pods"]
        again = [{**pod, "metadata": {**pod["metadata"], "resourceVersion": "9"}} for pod in at_first]
        assert await one.listed(pods=again)
        assert one.store.writes == 100


async def test_what_cannot_be_stored_is_tried_again(tmp_path: Path) -> None:
    """As it is by then: one that has gone meanwhile is nobody's business any more."""
    async with _scene(tmp_path) as one:
        one.store.away = True
        assert not await one.listed(pods=[_pod("stays"), _pod("goes")])
        assert await one.words.once(one.store) is not None
        one.store.away = False
        assert await one.listed(pods=[_pod("stays")])
        assert one.states() == {"pod-condition/ns/stays/stays": NoticeState.ACTIVE}


async def test_an_event_by_the_nodes_name_is_about_the_node_of_that_time(tmp_path: Path) -> None:
    """One from before the node was made is about the node that had its name."""
    async with _scene(tmp_path) as one:
        events = [_event("e1", "old", made=-20), _event("e2", "fresh", made=-20)]
        assert await one.listed(nodes=[_node("old", made=-500), _node("fresh", made=-5)], events=events)
        assert one.states() == {"event/old/old-uid": NoticeState.ACTIVE}


async def test_nobody_announces_the_end_of_other_peoples_pods_and_nodes(tmp_path: Path) -> None:
    """Who may write Events in one namespace may put any name and uid into them."""
    async with _scene(tmp_path) as one:
        names = [("e1", "tenant"), ("e2", "kube-system"), ("e3", "ns")]
        about_nodes = [_event(name, f"n-{name}", made=-20, namespace=space) for name, space in names]
        about_pod = {"involvedObject": {"kind": "Pod", "name": "p", "uid": "p"}}
        about_pods = [{**_event(f"{name}p", "", made=-20, namespace=space), **about_pod} for name, space in names[:2]]
        nodes = [_node(f"n-{name}", made=-500) for name, _ in names]
        assert await one.listed(nodes=nodes, pods=[_pod("p", status="Unknown")], events=about_nodes + about_pods)
        assert one.states() == {"event/n-e2/n-e2-uid": NoticeState.ACTIVE}
        own = {**_event("own", "", made=-20, namespace="ns"), **about_pod}
        about_another = {"involvedObject": {"kind": "Pod", "name": "q", "uid": "p"}}
        misnamed = {**_event("misnamed", "", made=-20, namespace="ns"), **about_another}
        assert await one.listed(nodes=nodes, pods=[_pod("p", status="Unknown")], events=[misnamed])
        assert "event/ns/p/p" not in one.states()
        assert await one.listed(nodes=nodes, pods=[_pod("p", status="Unknown")], events=[own])
        assert one.states()[NoticeId("event/ns/p/p")] is NoticeState.ACTIVE


def _drill(name: str, lead: str, made: float, version: int = 7, **fields: Any) -> dict[str, Any]:
    """An Event that asks for a drill of the node n."""
    event = {**_event(name, "n", made), "reason": EVENT_REASON, "message": "held by ann", **fields}
    said = {"annotations": {LEAD_ANNOTATION: lead}, "resourceVersion": str(version)}
    return {**event, "metadata": {**event["metadata"], **said}}


async def test_an_event_asks_for_a_drill_and_another_one_ends_it(tmp_path: Path) -> None:
    """The latest counts; the notice is a drill's, and its deadline counts from the Event's creation."""
    nodes = [_node("n", made=-500)]
    async with _scene(tmp_path) as one:
        begun = Clock().now()
        first = _drill("d1", "60", made=-10)
        assert await one.listed(nodes=nodes, events=[first])
        (drill,) = one.store.snapshot().notices.values()
        assert (drill.id, drill.message, drill.state) == ("simulated/n/n-uid", "held by ann", NoticeState.ACTIVE)
        assert drill.deadline is not None
        assert begun + 48 < drill.deadline < Clock().now() + 52
        moved = _drill("d2", "600", made=-5, version=8)
        assert await one.listed(nodes=nodes, events=[first, moved])
        (drill,) = one.store.snapshot().notices.values()
        assert drill.deadline is not None
        assert drill.deadline > begun + 500
        assert await one.listed(nodes=nodes, events=[first, moved, _drill("d3", "0", made=-5, version=9)])
        assert one.states() == {"simulated/n/n-uid": NoticeState.WITHDRAWN}
        writes = one.store.writes
        over = _drill("d3", "0", made=-5, version=9)
        assert await one.listed(nodes=nodes, events=[moved, over, first])
        assert await one.listed(nodes=nodes, events=[over, _drill("d4", "0", made=-4, version=10)])
        assert one.store.writes == writes


@pytest.mark.parametrize(
    "asked",
    [
        _drill("passed", "60", made=-61),
        _drill("long", "3601", made=-1),
        _drill("short", "0.5", made=-1),
        _drill("no number", "soon", made=-1),
        _drill("not a number", "nan", made=-1),
        _drill("no lead", "", made=-1),
        _drill("ended", "0", made=-1),
        _drill("another node", "60", made=-1, involvedObject={"kind": "Node", "name": "m", "uid": "m"}),
        {**_drill("a reclaim's", "60", made=-1), "reason": "Other"},
    ],
    ids=lambda event: event["metadata"]["name"],
)
async def test_what_asks_for_no_drill_that_may_be_held_is_none(tmp_path: Path, asked: dict[str, Any]) -> None:
    """One that is over, without end, about somebody else, or of no lead at all."""
    async with _scene(tmp_path) as one:
        assert await one.listed(nodes=[_node("n", made=-500)], events=[asked])
        assert one.states() == {}


async def test_who_may_write_events_elsewhere_drills_no_node_and_no_pod(tmp_path: Path) -> None:
    """As for Events that announce reclaims: a pod's in its namespace, a node's in `default` or `kube-system`."""
    strange = _drill("d1", "60", made=-1)
    strange["metadata"]["namespace"] = "tenant"
    about_pod = {"kind": "Pod", "name": "p", "uid": "p"}
    foreign = _drill("d2", "60", made=-1, involvedObject=about_pod)
    pods, nodes = [_pod("p", status="Unknown")], [_node("n", made=-500)]
    async with _scene(tmp_path) as one:
        assert await one.listed(nodes=nodes, pods=pods, events=[strange, foreign])
        assert one.states() == {}
        foreign["metadata"]["namespace"] = "ns"
        assert await one.listed(nodes=nodes, pods=pods, events=[strange, foreign])
        assert one.states() == {"simulated/ns/p/p": NoticeState.ACTIVE}


async def test_a_withdrawal_is_taken_in(tmp_path: Path) -> None:
    """A list that came after an outage tells it as well as the watch would have."""
    async with _scene(tmp_path) as one:
        await one.listed(pods=[_pod("p", 7)])
        await one.listed(pods=[_pod("p", 8, "Unknown")])
        assert one.states() == {"pod-condition/ns/p/p": NoticeState.ACTIVE}
        await one.listed(pods=[_pod("p", 9, "False")])
        assert one.states() == {"pod-condition/ns/p/p": NoticeState.WITHDRAWN}


async def test_signals_about_one_object_that_raise_leave_the_others_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read again later."""
    mended = False

    def raises(pod: Pod) -> Signal | None:
        if pod.metadata.name == "bad" and not mended:
            raise OverflowError("a defect")
        return pod_signal(pod)

    monkeypatch.setattr(signals, "pod_signal", raises)
    async with _scene(tmp_path) as one:
        assert not await one.listed(pods=[_pod("bad"), _pod("good")])
        assert one.states() == {"pod-condition/ns/good/good": NoticeState.ACTIVE}
        mended = True
        one.words._bulkhead.succeeded(FaultPlace("signals", "bad"))  # Its pause is over.
        assert await one.words.once(one.store) is None
        assert set(one.states()) == {"pod-condition/ns/good/good", "pod-condition/ns/bad/bad"}
