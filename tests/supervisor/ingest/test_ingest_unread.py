"""Nodes and pods that hold something unknown are there, and are nothing else: over real HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.cluster.allocation import FreeCapacity
from supervisor.cluster.view import ClusterView
from supervisor.ingest.cluster.signals import node_signal, pod_signal
from tests.node_agent.fake_api_server import FakeApiServer, fake_api_server
from tests.testkit.waiting import until

ODD_TAINT = {"taints": [{"key": "k", "effect": "NoRunning"}]}
ODD_REQUEST = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "many"}}}]}
READY = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8"}}


def node(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec, "status": READY}


def pod(name: str, on: str, spec: dict[str, Any] | None = None, phase: str = "Running") -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "uid-j", "controller": True}
    opted_in = {"job-supervisor.kube-ai.io/spot-instance": "true"}
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "ownerReferences": [owner]}
    whole = {"nodeName": on, **(spec or {})}
    return {"metadata": {**metadata, "annotations": opted_in}, "spec": whole, "status": {"phase": phase}}


@asynccontextmanager
async def viewing(fake: FakeApiServer, view: ClusterView) -> AsyncIterator[None]:
    for reflector in view.reflectors:
        await reflector.first()
    tasks = [asyncio.create_task(reflector.run()) for reflector in view.reflectors]
    try:
        yield
    finally:
        fake.leave()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def cluster() -> AsyncIterator[tuple[FakeApiServer, ClusterView]]:
    """Two good nodes with a good pod each, and a view of them."""
    async with fake_api_server() as (fake, server):
        for number in (1, 2):
            fake.put("nodes", node(f"n{number}"))
            fake.put("pods", pod(f"p{number}", f"n{number}"))
        yield fake, ClusterView(server, frozenset(), Clock(), lambda: None, Bulkhead(Clock()))


async def changed(view: ClusterView, change: Callable[[], None]) -> None:
    """Makes a change and waits until the watch has told of it."""
    before = view.version
    change()
    await until(lambda: view.version > before)


async def test_one_that_cannot_be_read_keeps_nobody_from_the_others(
    cluster: tuple[FakeApiServer, ClusterView],
) -> None:
    """It is listed with its name, its job and its node, logged once, and counted."""
    fake, view = cluster
    fake.put("nodes", node("odd", **ODD_TAINT))
    fake.put("pods", pod("odd", "n1", ODD_REQUEST))
    with capture_logs() as lines:
        async with viewing(fake, view):
            assert {one.metadata.name for one in view.nodes.values()} == {"n1", "n2", "odd"}
            assert set(view.node_uids.values()) == {"uid-n1", "uid-n2", "uid-odd"}
            assert {key.name for key, pod in view.pods.items() if pod.owner and pod.owner.uid == "uid-j"} == {
                "p1",
                "p2",
                "odd",
            }
            assert {key.name for key in view.bound("n1")} == {"p1", "odd"}
            assert view.unread == {"nodes": 1, "pods": 1}
            before = view.node("odd")
            fake.put("nodes", node("odd", **ODD_TAINT, unschedulable=True))
            await until(lambda: view.node("odd") is not before)
    told = [(line["kind"], line["name"]) for line in lines if line["event"] == "object.unread"]
    assert sorted(told) == [("nodes", "odd"), ("pods", "odd")]


async def test_nothing_new_goes_where_something_is_not_known(cluster: tuple[FakeApiServer, ClusterView]) -> None:
    """Neither to such a node, nor beside such a pod; and it does again once that has ended or can be read."""
    fake, view = cluster
    fake.put("nodes", node("odd", **ODD_TAINT))
    fake.put("pods", pod("odd", "n1", ODD_REQUEST))

    async with viewing(fake, view):
        rooms = FreeCapacity(view)

        def usable() -> set[str]:
            return {room.name for room in rooms.nodes(()).usable}

        assert usable() == {"n2"}
        await changed(view, lambda: fake.put("pods", pod("odd", "n1", ODD_REQUEST, phase="Succeeded")))
        assert usable() == {"n1", "n2"}
        await changed(view, lambda: fake.put("nodes", node("odd")))
        assert usable() == {"n1", "n2", "odd"}
        assert view.unread == {"nodes": 0, "pods": 1}
        await changed(view, lambda: fake.remove("pods", "odd"))
        assert view.unread == {"nodes": 0, "pods": 0}


async def test_one_that_becomes_unreadable_is_not_gone(cluster: tuple[FakeApiServer, ClusterView]) -> None:
    """A pod stays on its node, and neither it nor a node says anything of a reclaim then."""
    fake, view = cluster
    async with viewing(fake, view):
        await changed(view, lambda: fake.put("pods", pod("p1", "n1", ODD_REQUEST)))
        await changed(view, lambda: fake.put("nodes", node("n1", **ODD_TAINT)))
        seen, where = view.pod("uid-p1"), view.node("n1")
        assert seen is not None
        assert where is not None
        assert (seen.node, seen.over, seen.opted_in) == ("n1", False, True)
        assert view.node_uids["n1"] == "uid-n1"  # type: ignore[index]  # A name is a host here.
        assert (pod_signal(seen), node_signal(where, 60.0)) == (None, None)
