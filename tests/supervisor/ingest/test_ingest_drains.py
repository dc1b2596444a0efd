"""Nodes that an operator drains, over HTTP or by annotations of the Node object."""

from pathlib import Path
from typing import Any

import pytest

from servicekit.clock import Clock
from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.annotations import DRAIN, DRAIN_AT
from supervisor.cluster.objects import Node
from supervisor.decide.notices import Presence, apply_signal, ends_at
from supervisor.decide.policy import Policy
from supervisor.decide.urgency import NodeIdentities, noticed_hosts
from supervisor.domain.ids import Host
from supervisor.domain.notice import OPERATOR, Announcement, NoticeState, ReclaimNotice
from supervisor.ingest.cluster.signals import drain_signal
from tests.supervisor.decide.decide_builders import T0
from tests.testkit.serving import PeerRefusal, Served, serving
from tests.testkit.waiting import until

POLICY = Policy()


async def _says(served: Served, path: str, **body: Any) -> PeerRefusal:
    return await served.peers.post(path, served.peers.tokens.operator("ann"), body)


def _drains(served: Served) -> list[ReclaimNotice]:
    return [each for each in served.store.snapshot().notices.values() if each.drains]


def _left(served: Served) -> float:
    """Seconds until the deadline of the only drain."""
    (drain,) = _drains(served)
    assert drain.deadline is not None
    return drain.deadline - Clock().now()


async def test_a_drained_node_is_left_out_until_it_is_undrained(served: Served) -> None:
    """Its own metadata are clear all the time; who asked and why is shown; and the end takes effect at once."""
    await served.peers.agents(["n1", "n2"])
    launcher, order = await served.peers.running("job", ["n1", "n2"], min_workers=1)
    process = await served.peers.process(order["token"], "n2", 1)
    assert await _says(served, "/v1/drains", node="n2", lead_seconds=600, reason="new kernel") == PeerRefusal(200, None)
    assert (await process.lines.matching(directive="LEAVE"))["notice"]["source"] == "operator"
    excluding = await launcher.lines.matching(exclusions=["n2"])
    assert excluding["reason"].startswith("n2 is drained by ")
    await launcher.reports(applied=excluding["generation"])
    (shown,) = (await served.status())["notices"]
    assert (shown["source"], shown["message"], shown["simulated"]) == ("operator", "ann: new kernel", False)
    assert await _says(served, "/v1/drains/end", node="n2") == PeerRefusal(200, None)
    await launcher.lines.matching(exclusions=[])
    assert [each.state for each in _drains(served)] == [NoticeState.WITHDRAWN]
    assert await _says(served, "/v1/drains/end", node="n2") == PeerRefusal(200, None)


async def test_a_drain_outlives_its_deadline_and_the_supervisor(tmp_path: Path) -> None:
    """The node stays drained although its agent is there, and its job does not start on it."""
    async with serving(tmp_path, expire_seconds=0.01) as served:
        await served.peers.agents(["n1"])
        await _says(served, "/v1/drains", node="n1", lead_seconds=1)
        await served.peers.launcher("job", ["n1"])
    async with serving(tmp_path, expire_seconds=0.01) as served:
        await served.peers.agents(["n1"])
        await until(lambda: _left(served) < 0)
        launcher = await served.peers.launcher("job", ["n1"])
        waiting = await launcher.lines.matching(order="wait")
        assert "n1: drained by " in waiting["waits_for"]
        assert [each.state for each in _drains(served)] == [NoticeState.ACTIVE]
        await _says(served, "/v1/drains/end", node="n1")
        await launcher.lines.matching(order="run")


async def test_who_may_not_drain_and_what_cannot_be(served: Served) -> None:
    await served.peers.agents(["n1"])
    asked = {"node": "n1", "lead_seconds": 60}
    for token in (served.peers.tokens.viewer(), served.peers.tokens.agent("n1")):
        assert (await served.peers.post("/v1/drains", token, asked)).code == "foreign_token"
        assert (await served.peers.post("/v1/drains/end", token, {"node": "n1"})).code == "foreign_token"
    assert (await _says(served, "/v1/drains", node="n9", lead_seconds=60)).code == "unknown_node"
    for wrong in ({"lead_seconds": 0}, {"lead_seconds": 1e9}, {"lead_seconds": 60, "reason": "\x1b[2J"}):
        assert (await _says(served, "/v1/drains", node="n1", **wrong)).code == "malformed"
    assert not _drains(served)


def _node(version: int = 7, **annotations: str) -> Node:
    named = {{"drain": DRAIN, "at": DRAIN_AT}[name]: text for name, text in annotations.items()}
    return Node(metadata=Metadata(name="n1", uid="uid-1", resource_version=str(version)), annotations=named)


@pytest.mark.parametrize(
    ("annotations", "announcement", "message", "deadline"),
    [
        ({}, Announcement.WITHDRAWN, "", None),
        ({"drain": "false", "at": "2026-11-22T10:00:00Z"}, Announcement.WITHDRAWN, "", None),
        ({"drain": "ann: new\x1b kernel"}, Announcement.ACTIVE, "ann: new  kernel", None),
        ({"drain": "true", "at": "tomorrow"}, Announcement.ACTIVE, "true", None),
        ({"drain": "ann", "at": "9999-12-31T23:59:59-12:00"}, Announcement.ACTIVE, "ann", None),
        ({"drain": "ann", "at": "0001-01-01T00:00:00"}, Announcement.ACTIVE, "ann", None),
        ({"drain": "ann", "at": "1970-01-01T00:01:00Z"}, Announcement.ACTIVE, "ann", 60.0),
        ({"drain": "ann", "at": "1970-01-01T00:01:00"}, Announcement.ACTIVE, "ann", 60.0),
    ],
)
def test_annotations_of_a_node_drain_it(
    annotations: dict[str, str], announcement: Announcement, message: str, deadline: float | None
) -> None:
    """Whatever is written there: a value that is not understood keeps no node in use."""
    signal = drain_signal(_node(7, **annotations))
    assert (signal.announcement, signal.message, signal.deadline) == (announcement, message, deadline)
    assert signal.source == OPERATOR


def test_a_drain_that_is_first_seen_long_after_its_deadline_holds() -> None:
    """As for a supervisor with an empty store; no metadata deny it, and another machine of that name is not drained."""
    signal = drain_signal(_node(drain="ann", at="1970-01-01T00:01:00Z"))
    notice = apply_signal(None, signal, T0, T0, POLICY)
    assert notice is not None
    assert notice.state is NoticeState.ACTIVE
    clear = NodeIdentities(objects={Host("n1"): "uid-1"}, clear=[Host("n1")])
    assert noticed_hosts([notice], clear, POLICY) == {Host("n1"): notice}
    assert noticed_hosts([notice], NodeIdentities(objects={Host("n1"): "uid-2"}), POLICY) == {}
    assert ends_at(notice, Presence.SILENT, POLICY) == ends_at(notice, Presence.PRESENT, POLICY) > T0 + 1e9
    assert ends_at(notice, Presence.GONE, POLICY) < T0 + 1e3
    gone = apply_signal(notice, drain_signal(_node(8)), T0, T0, POLICY)
    assert gone is not None
    assert gone.state is NoticeState.WITHDRAWN
