"""The pod conditions and phases that mean a reclaim, and the reports about them."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from node_agent.notices import AnnouncementState, NoticeReport, NoticeSubjectKind
from node_agent.pods import WatchedPod, classify, read_pod, report
from servicekit.spot import PodReclaim, Withdrawn
from tests.node_agent.pod_manifests import MANAGED, NOON, SPOT, UID, disruption, pod

EVICTED = disruption("EvictionByEvictionAPI", message="Eviction API: evicting")
PREEMPTED = disruption(
    "PreemptionByScheduler", message="default-scheduler: preempting to accommodate a higher priority pod"
)
TAINTED = disruption("DeletionByTaintManager", message="Taint manager: deleting due to NoExecute taint")
COLLECTED = disruption("DeletionByPodGC", message="PodGC: node no longer exists")
BY_KUBELET = disruption("TerminationByKubelet", message="The node was low on resource: memory.")
# The deletion was asked for ten seconds before.
LATER = disruption("DeletionByTaintManager", since=20)


@pytest.mark.parametrize(
    ("state", "message", "ends"),
    [
        (pod(EVICTED), "DisruptionTarget: EvictionByEvictionAPI: Eviction API: evicting", None),
        (pod(EVICTED, deleted=0), "DisruptionTarget: EvictionByEvictionAPI: Eviction API: evicting", 30),
        (pod(PREEMPTED, deleted=0, grace=600), f"DisruptionTarget: PreemptionByScheduler: {PREEMPTED['message']}", 600),
        (pod(TAINTED, deleted=1), f"DisruptionTarget: DeletionByTaintManager: {TAINTED['message']}", 31),
        (pod(COLLECTED, phase="Failed"), f"DisruptionTarget: DeletionByPodGC: {COLLECTED['message']}", 0),
        (pod(BY_KUBELET), f"DisruptionTarget: TerminationByKubelet: {BY_KUBELET['message']}", 30),
        (
            pod(BY_KUBELET, phase="Failed", ended=4),
            f"DisruptionTarget: TerminationByKubelet: {BY_KUBELET['message']}",
            4,
        ),
        (pod(disruption("SomebodyNew"), phase="Pending"), "DisruptionTarget: SomebodyNew", None),
        (pod(phase="Failed", reason="Evicted", message="low on memory", ended=9), "Failed: Evicted: low on memory", 9),
        (pod(phase="Failed", reason="Preempting", ended=9), "Failed: Preempting", 9),
        (pod(phase="Failed", reason="Terminated", ended=9), "Failed: Terminated", 9),
        (pod(phase="Failed", reason="NodeShutdown", containerStatuses=[]), "Failed: NodeShutdown", None),
        # Told twice: what came first counts, and clocks may differ by some seconds.
        (pod(disruption("DeletionByTaintManager", since=4), deleted=0), "DisruptionTarget: DeletionByTaintManager", 30),
        (
            pod(EVICTED, phase="Failed", ended=20, deleted=0),
            "DisruptionTarget: EvictionByEvictionAPI: Eviction API: evicting",
            20,
        ),
    ],
)
def test_a_reclaim_names_who_takes_the_pod_and_when(state: WatchedPod, message: str, ends: int | None) -> None:
    """In the words of whoever does; the deadline is the end of its grace, or of its last process."""
    expected = None if ends is None else datetime.fromtimestamp(NOON + ends, UTC)
    said = classify(state)
    assert isinstance(said, PodReclaim)
    assert (said.message, said.deadline) == (message, expected)


@pytest.mark.parametrize(
    "state",
    [
        pod(),
        pod(deleted=0),
        pod(deleted=0, phase="Failed", ended=5, reason="Error"),
        pod(phase="Succeeded", ended=5),
        pod(EVICTED, phase="Succeeded", ended=5),
        pod(phase="Failed", ended=5),
        pod(
            phase="Failed",
            ended=5,
            reason="DeadlineExceeded",
            message="WatchedPod was active on the node longer than asked",
        ),
        pod(phase="Failed", reason="UnexpectedAdmissionError"),
        pod(reason="Evicted"),
        pod(LATER, deleted=10),
        pod(LATER, phase="Failed", ended=10),
        pod(EVICTED, annotations={}),
        pod(EVICTED, annotations={MANAGED: "false", SPOT: "no"}),
    ],
    ids=[
        "lives",
        "deleted",
        "deleted-and-failed",
        "succeeded",
        "succeeded-meanwhile",
        "failed",
        "took-too-long",
        "never-admitted",
        "only-said-why",
        "deleted-before",
        "failed-before",
        "not-opted-in",
        "opted-out",
    ],
)
def test_every_other_end_is_none(state: WatchedPod) -> None:
    """A user's delete, a scale-in, the end of the job, completion, a failure of its own."""
    assert classify(state) is None


def test_what_a_pod_lacks_is_nothing() -> None:
    """One bad pod must not hide the others: whatever may be missing or null is."""
    metadata = {"name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1", "annotations": {MANAGED: "true"}}
    failed = {"phase": "Failed", "reason": "Evicted"}
    for content in (
        {"status": failed},
        {"spec": {}, "status": {**failed, "conditions": None, "containerStatuses": None}},
        {"spec": {"terminationGracePeriodSeconds": None}, "status": {**failed, "containerStatuses": [{}]}},
        {"status": {**failed, "containerStatuses": [{"state": {"terminated": {"finishedAt": None}}}]}},
    ):
        state = read_pod(json.dumps({"metadata": metadata, **content}).encode())
        assert classify(state) == PodReclaim("Failed: Evicted", None, 30.0)
    bare = {name: value for name, value in metadata.items() if name != "annotations"}
    assert not read_pod(json.dumps({"metadata": {**bare, "annotations": None}}).encode()).opted_in


@pytest.mark.parametrize("annotations", [{MANAGED: "true"}, {SPOT: "true"}, {MANAGED: "false", SPOT: "true"}])
def test_either_annotation_opts_in(annotations: dict[str, str]) -> None:
    assert isinstance(classify(pod(EVICTED, annotations=annotations)), PodReclaim)


def test_a_disruption_that_did_not_happen_was_taken_back() -> None:
    """The scheduler found another place; the condition turns False after two minutes. Unknown is neither."""
    assert classify(pod(disruption("PreemptionByScheduler", 120, status="False"))) == Withdrawn()
    assert classify(pod(disruption("PreemptionByScheduler", 120, status="Unknown"))) is None


def told(last: NoticeReport | None, state: WatchedPod, now: float = 1000.0, wall: float = NOON) -> NoticeReport | None:
    """What is news about a pod, 1000 s after the machine began."""
    return report(last, state, classify(state), now, wall)


def reported(last: NoticeReport | None, state: WatchedPod, **changes: Any) -> NoticeReport:
    new = told(last, state, **changes)
    assert new is not None
    return new


def test_a_report_is_about_the_pod() -> None:
    new = reported(None, pod(EVICTED, deleted=0), wall=NOON + 10)
    assert (new.id, new.subject.kind, new.subject.name) == (
        f"kubernetes/{UID}",
        NoticeSubjectKind.POD,
        "space/worker-0",
    )
    assert (new.revision, new.announcement, new.deadline) == (1, AnnouncementState.ACTIVE, 1020.0)
    assert new.announced == datetime.fromtimestamp(NOON + 30, UTC)


def test_never_is_more_left_than_the_grace() -> None:
    """Whatever the clocks say; and a pod that is long gone is that."""
    assert reported(None, pod(EVICTED, deleted=0), wall=NOON - 3600).deadline == 1030.0
    assert reported(None, pod(EVICTED, deleted=0), wall=NOON + 3600).deadline == 1000.0 - 3570.0


def test_only_news_is_reported() -> None:
    """The deadline that comes with the deletion is; that the same was seen again, or by another clock, is not."""
    first = reported(None, pod(EVICTED))
    assert first.deadline is None
    second = reported(first, pod(EVICTED, deleted=0))
    assert (second.revision, second.deadline) == (2, 1030.0)
    assert told(second, pod(EVICTED, deleted=0), now=1020.0, wall=NOON + 25) is None
    assert told(second, pod(), now=1020.0) is None
    third = reported(second, pod(EVICTED, phase="Failed", ended=12, deleted=0), wall=NOON + 12)
    assert (third.revision, third.deadline) == (3, 1000.0)


def test_a_withdrawal_is_reported_once_and_unasked() -> None:
    """Also by an agent that announced nothing: the one before it may have."""
    spared = pod(disruption("PreemptionByScheduler", 120, status="False"))
    unasked = reported(None, spared)
    assert (unasked.revision, unasked.announcement) == (1, AnnouncementState.WITHDRAWN)
    announced = reported(unasked, pod(PREEMPTED))
    withdrawn = reported(announced, spared)
    assert (withdrawn.revision, withdrawn.announcement) == (3, AnnouncementState.WITHDRAWN)
    assert told(withdrawn, spared) is None
