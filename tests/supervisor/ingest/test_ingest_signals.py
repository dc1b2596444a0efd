"""Pods, nodes and Events signal reclaims."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from servicekit.clock import Clock
from servicekit.kubernetes.clock import ClusterClock
from supervisor.cluster.events import ClusterEvent, read_event
from supervisor.cluster.objects import Node, Pod, read_node, read_pod
from supervisor.decide.notices import Signal
from supervisor.domain.notice import (
    EVENT,
    NODE_CONDITION,
    NODE_MAINTENANCE,
    POD_CONDITION,
    Announcement,
    NoticeClass,
    SubjectKind,
)
from supervisor.ingest.cluster.signals import event_signal, maintenance_signal, node_signal, pod_signal, pod_subject

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
OPT_IN = {"job-supervisor.kube-ai.io/managed-by-job-supervisor": "true"}
DISRUPTED = "DisruptionTarget"


def _at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def _condition(kind: str, status: str = "True", reason: str = "Why", since: float | None = 0.0) -> dict[str, Any]:
    dated = {} if since is None else {"lastTransitionTime": _at(since)}
    return {"type": kind, "status": status, "reason": reason, "message": "so", **dated}


def _pod(
    *conditions: dict[str, Any], annotations: dict[str, str] | None = None, deleted: float | None = None, **status: Any
) -> Pod:
    """`deleted`: the end of 30 s of grace, in seconds from now."""
    ending = {} if deleted is None else {"deletionTimestamp": _at(deleted), "deletionGracePeriodSeconds": 30}
    metadata = {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": OPT_IN if annotations is None else annotations,
        **ending,
    }
    told = {"phase": "Running", "conditions": conditions, **status}
    return read_pod(msgspec.json.encode({"metadata": metadata, "status": told}), frozenset())


def _node(*conditions: dict[str, Any]) -> Node:
    metadata = {"name": "n", "uid": "u", "resourceVersion": "7"}
    return read_node(msgspec.json.encode({"metadata": metadata, "status": {"conditions": conditions}}))


def _event(version: int = 5, **fields: Any) -> ClusterEvent:
    event = {
        "metadata": {"name": "e", "namespace": "ns", "uid": "e", "resourceVersion": str(version)},
        "involvedObject": {"kind": "Pod", "namespace": "ns", "name": "p", "uid": "u"},
        "reason": "SpotToBeReleased",
        "message": "Spot ECI will be released in 3 minutes",
        "eventTime": None,
        **fields,
    }
    return read_event(msgspec.json.encode(event))


def _left(word: Signal | None) -> float | None:
    assert word is not None
    assert word.announcement is Announcement.ACTIVE
    return None if word.deadline is None else word.deadline - NOW.timestamp()


def test_a_pod_that_its_virtual_node_expires_has_three_minutes() -> None:
    word = pod_signal(_pod(_condition("ContainerInstanceExpired", since=-20)))
    assert _left(word) == 160
    assert word is not None
    assert (word.source, word.subject.kind, word.subject.name, word.subject.uid, word.revision) == (
        POD_CONDITION,
        SubjectKind.POD,
        "ns/p",
        "u",
        7,
    )
    assert (word.message, word.announced) == ("ContainerInstanceExpired: Why: so", _at(160))


@pytest.mark.parametrize(
    ("pod", "left"),
    [
        (_pod(_condition(DISRUPTED, reason="EvictionByEvictionAPI"), deleted=30), 30),
        (_pod(_condition(DISRUPTED, reason="PreemptionByScheduler")), None),
        (_pod(_condition(DISRUPTED, reason="TerminationByKubelet")), 30),
        (_pod(_condition(DISRUPTED, reason="TerminationByKubelet"), phase="Failed", reason="Evicted"), 0),
        (_pod(_condition(DISRUPTED, since=None), deleted=12), 12),
        (_pod(phase="Failed", reason="Evicted"), None),
        (_pod(phase="Failed", reason="BidFailed"), None),
        # Of two announcements the earlier end counts.
        (_pod(_condition(DISRUPTED), _condition("ContainerInstanceExpired", since=-100), deleted=30), 30),
        (_pod(_condition(DISRUPTED), _condition("ContainerInstanceExpired", since=-100)), 80),
    ],
)
def test_whoever_takes_a_pods_place_away_announces_it(pod: Pod, left: float | None) -> None:
    assert _left(pod_signal(pod)) == left


@pytest.mark.parametrize(
    "pod",
    [
        _pod(),
        _pod(deleted=30),
        _pod(_condition(DISRUPTED), annotations={}),
        _pod(_condition(DISRUPTED), annotations={next(iter(OPT_IN)): "false"}),
        _pod(_condition(DISRUPTED), phase="Succeeded"),
        _pod(phase="Failed", reason="Error"),
        # Asked for 60 s ago, by whoever deletes the job; the pod garbage collector came afterwards.
        _pod(_condition(DISRUPTED, reason="DeletionByPodGC"), deleted=-30),
        _pod(_condition("ContainerInstanceExpired", "Unknown")),
        _pod(_condition(DISRUPTED, "False"), _condition("ContainerInstanceExpired", "Unknown")),
    ],
)
def test_other_ends_of_pods_say_nothing(pod: Pod) -> None:
    """Completion, a plain deletion, its own failure, a pod that is not in our care, what is not known."""
    assert pod_signal(pod) is None


def test_an_announcement_on_a_pod_is_taken_back_in_so_many_words() -> None:
    """By the condition that turns False; the other one may not be open then."""
    word = pod_signal(_pod(_condition(DISRUPTED, "False")))
    assert word is not None
    assert word.announcement is Announcement.WITHDRAWN
    assert _left(pod_signal(_pod(_condition(DISRUPTED, "False"), _condition("ContainerInstanceExpired")))) == 180


def test_a_nodes_condition_announces_and_withdraws() -> None:
    """Unknown is neither, and so is a node whose detector was taken away."""
    word = node_signal(_node(_condition("InstanceExpired", reason="InstanceToBeTerminated", since=-10)), 300)
    assert _left(word) == 290
    assert word is not None
    assert (word.source, word.subject.kind, word.subject.name) == (NODE_CONDITION, SubjectKind.NODE, "n")
    taken_back = node_signal(_node(_condition("InstanceExpired", "False")), 300)
    assert taken_back is not None
    assert taken_back.announcement is Announcement.WITHDRAWN
    assert node_signal(_node(_condition("InstanceExpired", "Unknown")), 300) is None
    assert node_signal(_node(_condition("Ready")), 300) is None


GKE_LABEL = "cloud.google.com/scheduled-maintenance-time"


def test_maintenance_in_a_label_is_scheduled_for_that_instant() -> None:
    node = replace(_node(), labels={GKE_LABEL: str(int(NOW.timestamp()) + 7200)})
    word = maintenance_signal(node)
    assert _left(word) == 7200
    assert word is not None
    assert (word.source, word.notice_class) == (NODE_MAINTENANCE, NoticeClass.SCHEDULED)
    assert (word.announcement, word.announced) == (Announcement.ACTIVE, "2026-11-21T14:00:00Z")


def test_planned_maintenance_without_a_time_is_scheduled_for_no_instant() -> None:
    word = maintenance_signal(_node(_condition("MaintenancePlanned")))
    assert word is not None
    assert (word.deadline, word.notice_class, word.message) == (
        None,
        NoticeClass.SCHEDULED,
        "MaintenancePlanned: Why: so",
    )


@pytest.mark.parametrize("text", ["", "soon", "-5", "1.5", "9" * 12, "²"])
def test_a_label_that_names_no_instant_announces_nothing(text: str) -> None:
    word = maintenance_signal(replace(_node(), labels={GKE_LABEL: text}))
    assert word is not None
    assert word.announcement is Announcement.WITHDRAWN


def test_maintenance_that_cannot_be_read_is_not_withdrawn() -> None:
    """Unknown is never "no notice"."""
    assert maintenance_signal(_node(_condition("MaintenancePlanned", "Unknown"))) is None
    assert maintenance_signal(replace(_node(), unread="a newer form")) is None
    withdrawn = maintenance_signal(_node(_condition("MaintenancePlanned", "False")))
    assert withdrawn is not None
    assert withdrawn.announcement is Announcement.WITHDRAWN


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"firstTimestamp": _at(-90), "lastTimestamp": _at(-30), "count": 3}, -30),
        ({"firstTimestamp": None, "eventTime": _at(-40)}, -40),
        ({"eventTime": _at(-40), "series": {"count": 2, "lastObservedTime": _at(-10)}}, -10),
        ({"firstTimestamp": _at(-70)}, -70),
    ],
)
def test_the_last_time_of_an_event_counts(fields: dict[str, Any], at: float) -> None:
    word = event_signal([(_event(**fields), 180.0)], pod_subject(_pod()))
    assert _left(word) == 180 + at
    assert word is not None
    assert (word.source, word.session) == (EVENT, int(NOW.timestamp() + at))
    assert word.message == "SpotToBeReleased: Spot ECI will be released in 3 minutes"


def test_the_latest_of_several_events_counts() -> None:
    early, late = _event(9, lastTimestamp=_at(-60)), _event(8, lastTimestamp=_at(-5))
    subject = pod_subject(_pod())
    assert _left(event_signal([(late, 180.0), (early, 300.0)], subject)) == 175
    assert event_signal([], subject) is None


def test_what_is_said_is_one_printable_line_of_bounded_length() -> None:
    """Anybody who may write Events in a pod's namespace may write anything into them."""
    word = event_signal([(_event(message="a\nb\x1b[2J" + "c" * 900), 180.0)], pod_subject(_pod()))
    assert word is not None
    assert word.message.startswith("SpotToBeReleased: a b [2Jcc")
    assert len(word.message) == 512


def test_the_clusters_clock_follows_the_dates_of_answers() -> None:
    clock = Clock()
    there = ClusterClock(clock)
    assert clock.now() <= there.now() <= clock.now()
    there.observe("Sat, 21 Nov 2026 12:00:00 GMT", 0.0)
    for nothing in ("", "yesterday"):
        there.observe(nothing, 0.0)
    assert abs(there.now() - NOW.timestamp() - 0.5) < 0.5


class _SetClock(Clock):
    """So many seconds ahead of the API server, whose second has just begun; time stands still."""

    def __init__(self, ahead: float) -> None:
        super().__init__()
        self.moved = ahead

    def now(self) -> float:
        return NOW.timestamp() + self.moved

    def move(self, seconds: float) -> None:
        self.moved += seconds


@pytest.mark.parametrize(
    ("ahead", "seconds", "left_at"),
    [
        # It may be right: within the second that the Date names, or as much after it as the answer took.
        (0.0, 0.0, 0.0),
        (0.9, 0.0, 0.9),
        (1.5, 1.0, 1.5),
        # It is wrong, and moved no further than to where it may be right.
        (600.0, 0.5, 1.5),
        (-7200.0, 0.5, 0.0),
    ],
)
def test_a_clock_is_moved_by_what_it_is_certainly_off(ahead: float, seconds: float, left_at: float) -> None:
    """A Date has whole seconds: a clock that is right must not be made worse by it."""
    clock = _SetClock(ahead)
    there = ClusterClock(clock)
    assert there.correct_own_clock() == 0.0
    there.observe(NOW.strftime("%a, %d %b %Y %H:%M:%S GMT"), seconds)
    named = there.now()
    assert there.correct_own_clock() == pytest.approx(left_at - ahead)
    assert clock.moved == pytest.approx(left_at)
    assert there.now() == pytest.approx(named)
    assert there.correct_own_clock() == pytest.approx(0.0)


@pytest.mark.parametrize(
    "at", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"]
)
def test_an_event_from_beyond_time_has_no_deadline(at: str) -> None:
    """Tenants may write Events with any instant; a lead is added to it, and the sum has a text."""
    later = _event(6, lastTimestamp=_at(0))
    subject = pod_subject(_pod())
    word = event_signal([(_event(5, lastTimestamp=at), 180.0)], subject)
    assert word is not None
    assert (word.announcement, word.deadline, word.announced) == (Announcement.ACTIVE, None, "")
    assert _left(event_signal([(_event(5, lastTimestamp=at), 180.0), (later, 180.0)], subject)) == 180


def test_a_condition_from_beyond_time_has_no_deadline() -> None:
    """Whoever may write a node's status can write any instant."""
    condition = {**_condition("InstanceExpired"), "lastTransitionTime": "9999-12-31T23:59:59-12:00"}
    word = node_signal(_node(condition), 30.0)
    assert word is not None
    assert (word.announcement, word.deadline, word.announced) == (Announcement.ACTIVE, None, "")
