"""Taints on a node announce a reclaim, or hint at one."""

from dataclasses import replace

import msgspec
import pytest

from supervisor.cluster.objects import Node, read_node
from supervisor.decide.notices import Signal, apply_signal
from supervisor.decide.policy import Policy
from supervisor.decide.urgency import deadline_of
from supervisor.domain.notice import NODE_TAINT, SCALE_IN, Announcement, NoticeClass, NoticeState, ReclaimNotice
from supervisor.ingest.cluster.signals import taint_signals

LEADS = {"spot/soon": 120.0, "spot/now": 30.0, "drain": None}
T0 = 1_000.0


def _node(*keys: str, version: int = 7) -> Node:
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    metadata = {"name": "n", "uid": "u", "resourceVersion": str(version)}
    return read_node(msgspec.json.encode({"metadata": metadata, "spec": {"taints": taints}}))


def _signal(*keys: str, now: float = T0, version: int = 7) -> Signal:
    [signal] = (each for each in taint_signals(_node(*keys, version=version), LEADS, now) if each.source == NODE_TAINT)
    return signal


def _applied(known: ReclaimNotice | None, *keys: str, now: float, version: int = 7) -> ReclaimNotice | None:
    return apply_signal(known, _signal(*keys, now=now, version=version), now, now, Policy())


def test_a_taint_announces_the_node_of_its_name() -> None:
    signal = _signal("spot/soon", "unrelated")
    assert (signal.source, signal.subject.name, signal.subject.uid) == (NODE_TAINT, "n", "u")
    assert (signal.announcement, signal.notice_class) == (Announcement.ACTIVE, NoticeClass.SUDDEN)
    assert (signal.deadline, signal.message) == (T0 + 120, "spot/soon")


def test_a_taint_that_names_no_time_is_a_hint() -> None:
    signal = _signal("drain")
    assert (signal.notice_class, signal.deadline, signal.message) == (NoticeClass.HINT, None, "drain")


@pytest.mark.parametrize(
    ("keys", "counts"),
    [
        (("drain", "spot/soon"), "spot/soon"),
        (("spot/soon", "spot/now"), "spot/now"),
        (("spot/now", "drain", "spot/soon"), "spot/now"),
    ],
)
def test_of_several_taints_the_most_urgent_counts(keys: tuple[str, ...], counts: str) -> None:
    assert _signal(*keys).message == counts


def test_the_seconds_count_from_the_first_sight_of_the_taint() -> None:
    """However often the node changes while it has the taint."""
    first = _applied(None, "spot/soon", now=T0)
    assert first is not None
    again = _applied(first, "spot/soon", "unrelated", now=T0 + 50, version=8)
    assert again is first
    assert deadline_of(first, Policy()) == T0 + 120


def test_a_node_that_loses_the_taint_is_not_reclaimed() -> None:
    noticed = _applied(None, "spot/soon", now=T0)
    withdrawn = _applied(noticed, now=T0 + 10, version=8)
    assert withdrawn is not None
    assert withdrawn.state is NoticeState.WITHDRAWN
    assert _applied(None, "unrelated", now=T0) is None


def test_a_later_taint_is_a_new_episode() -> None:
    noticed = _applied(None, "spot/soon", now=T0)
    withdrawn = _applied(noticed, now=T0 + 10, version=8)
    tainted = _applied(withdrawn, "spot/soon", now=T0 + 500, version=9)
    assert tainted is not None
    assert (tainted.state, tainted.episode) == (NoticeState.ACTIVE, 2)
    assert deadline_of(tainted, Policy()) == T0 + 620


def test_a_node_that_cannot_be_read_withdraws_nothing() -> None:
    """Unknown is never "no notice"."""
    assert not list(taint_signals(replace(_node(), unread="a newer form"), LEADS, T0))


@pytest.mark.parametrize("key", ["karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"])
def test_the_removal_of_a_node_by_an_autoscaler_has_a_source_of_its_own(key: str) -> None:
    """It says nothing about the taints of others, whose notices stand or fall by themselves."""
    found = taint_signals(_node(key), {**LEADS, key: None}, T0)
    assert {signal.source: signal.announcement for signal in found} == {
        NODE_TAINT: Announcement.WITHDRAWN,
        SCALE_IN: Announcement.ACTIVE,
    }
