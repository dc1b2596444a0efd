"""The injection for new pods uses the present CA and the present notices."""

from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from servicekit.clock import Clock
from servicekit.tls import CertificateUnusable
from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host, NoticeId, Source
from supervisor.domain.notice import NODE_CONDITION, NoticeClass, NoticeState, ReclaimNotice, Subject, SubjectKind
from supervisor.store.interface import Snapshot
from supervisor.webhook.injection import CaFile, NoticedNodes, avoided
from supervisor.webhook.mutation import AvoidedNodes
from tests.supervisor.decide.decide_builders import T0, notice

HINT, SCHEDULED = NoticeClass.HINT, NoticeClass.SCHEDULED
_NODES = {Host(name): f"object {name}" for name in ("n1", "n2", "n3")}


def on(node: str, left: float | None = 100.0, **changes: object) -> ReclaimNotice:
    subject = Subject(SubjectKind.NODE, node, f"machine {node}")
    return replace(notice(1, left=left), **{"subject": subject, **changes})  # type: ignore[arg-type]


def snapshot(*notices: ReclaimNotice, version: int = 1) -> Snapshot:
    return Snapshot(
        version=version, notices={NoticeId(str(number)): each for number, each in enumerate(notices)}, jobs={}
    )


def avoidance_patch(*notices: ReclaimNotice) -> list[str]:
    return list(avoided(snapshot(*notices), _NODES, T0, Policy()).noticed)


def test_those_that_go_last_come_first() -> None:
    assert avoidance_patch(on("n1", 50), on("n2", 150), on("n3", 100)) == ["n2", "n3", "n1"]


@pytest.mark.parametrize("state", [NoticeState.WITHDRAWN, NoticeState.EXPIRED, NoticeState.GONE])
def test_what_has_ended_keeps_nobody_off(state: NoticeState) -> None:
    assert avoidance_patch(on("n1", state=state)) == []


def test_what_is_not_there_needs_no_mention() -> None:
    assert avoidance_patch(on("n4")) == []


def test_a_notice_on_a_pod_says_nothing_of_a_node() -> None:
    assert avoidance_patch(on("n1", subject=Subject(SubjectKind.POD, "n1", "uid"))) == []


def test_a_node_that_was_made_again_is_another_one() -> None:
    """What the API server said of the earlier object does not bind it."""
    earlier, present = (Subject(SubjectKind.NODE, "n1", uid) for uid in ("object before", _NODES[Host("n1")]))
    assert avoidance_patch(on("n1", source=NODE_CONDITION, subject=earlier)) == []
    assert avoidance_patch(on("n1", source=NODE_CONDITION, subject=present)) == ["n1"]


def test_a_change_of_notices_or_nodes_is_seen_with_the_next_pod() -> None:
    present = [snapshot(on("n1"))]
    nodes, version = dict(_NODES), [1]
    noticed = NoticedNodes(lambda: present[0], lambda: nodes, lambda: version[0], Policy(), lambda: T0)
    first = noticed.now()
    assert first.noticed == ["n1"]
    assert noticed.now() is first
    present[0] = snapshot(on("n2"), version=2)
    assert noticed.now().noticed == ["n2"]
    del nodes[Host("n2")]
    version[0] += 1
    assert noticed.now() == AvoidedNodes([], [])


def test_a_hinted_node_is_avoided_if_possible() -> None:
    """As one whose schedule names no time. Another notice on the node outweighs the hint."""
    hint, schedule = (on(node, None, notice_class=each) for node, each in (("n2", HINT), ("n3", SCHEDULED)))
    away, ended = on("n4", None, notice_class=HINT), on("n1", None, notice_class=HINT, state=NoticeState.EXPIRED)
    assert avoided(snapshot(hint, schedule, away, ended), _NODES, T0, Policy()) == AvoidedNodes([], ["n2", "n3"])
    assert avoided(snapshot(hint, on("n2", source=Source("other"))), _NODES, T0, Policy()) == AvoidedNodes(["n2"], [])


def test_a_scheduled_end_keeps_pods_off_when_it_is_near_and_a_hint_never() -> None:
    """Time alone makes it so: nothing else changes."""
    day = on("n1", 86400.0, notice_class=SCHEDULED)
    present = snapshot(day, on("n2", None, notice_class=HINT))
    now = [T0]
    noticed = NoticedNodes(lambda: present, lambda: _NODES, lambda: 1, Policy(), lambda: now[0])
    assert noticed.now() == AvoidedNodes([], ["n2"])
    now[0] = T0 + 86400.0 - Policy().scheduled_avoid_seconds
    assert noticed.now() == AvoidedNodes(["n1"], ["n2"])


def test_the_ca_is_the_files_present_one(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    first, second = (trustme.CA().cert_pem.bytes().decode() for _ in range(2))
    file.write_text(first)
    handed_out = CaFile(file, Clock())
    assert handed_out.text() == first
    file.write_text(second)
    assert handed_out.text() == second
    file.write_text("half of it")
    assert handed_out.text() == second
    file.unlink()
    assert handed_out.text() == second


@pytest.mark.parametrize("text", [None, "", "no CA", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", "ä"])
def test_no_ca_where_one_should_be_is_said_at_the_start(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "ca.crt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CertificateUnusable, match=r"ca\.crt"):
        CaFile(file, Clock())
