"""The node agent and the supervisor say the same about a pod, each by what it reads in the pod's manifest."""

from typing import Any, NamedTuple

import pytest

from node_agent import pods as agents
from servicekit.spot import PodReclaim, Withdrawn
from supervisor.cluster.objects import read_pod
from supervisor.domain.notice import Announcement
from supervisor.ingest.cluster.signals import pod_signal
from tests.node_agent.pod_manifests import MANAGED, NOON, disruption, manifest


class PodVerdict(NamedTuple):
    """What is said of a reclaim; `ends` is counted from noon."""

    announcement: Announcement
    ends: float | None = None
    lead: float | None = None
    message: str = ""


WITHDRAWN = PodVerdict(Announcement.WITHDRAWN)


def gone(ends: float | None, lead: float, message: str) -> PodVerdict:
    return PodVerdict(Announcement.ACTIVE, ends, lead, message)


def by_agent(data: bytes) -> PodVerdict | None:
    match agents.classify(agents.read_pod(data)):
        case PodReclaim(message, ends, lead):
            return gone(None if ends is None else ends.timestamp() - NOON, lead, message)
        case Withdrawn():
            return WITHDRAWN
    return None


def by_supervisor(data: bytes) -> PodVerdict | None:
    word = pod_signal(read_pod(data, frozenset()))
    if word is None:
        return None
    return PodVerdict(
        word.announcement, None if word.deadline is None else word.deadline - NOON, word.lead, word.message
    )


EVICTED = disruption("EvictionByEvictionAPI")
BY_KUBELET = disruption("TerminationByKubelet")
AN_HOUR_LATER = disruption("DeletionByTaintManager", since=3599)
EXPIRED = {**disruption("Outbid"), "type": "ContainerInstanceExpired"}
BY_EVICTION = "DisruptionTarget: EvictionByEvictionAPI"


@pytest.mark.parametrize("says", [by_agent, by_supervisor])
@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"conditions": [BY_KUBELET], "grace": 120}, gone(120, 120, "DisruptionTarget: TerminationByKubelet")),
        ({"conditions": [BY_KUBELET], "grace": 10}, gone(10, 10, "DisruptionTarget: TerminationByKubelet")),
        # The API server accepts any number of seconds of grace.
        ({"conditions": [BY_KUBELET], "grace": 10**12}, gone(None, 1e12, "DisruptionTarget: TerminationByKubelet")),
        ({"conditions": [AN_HOUR_LATER], "phase": "Failed", "ended": 5, "reason": "Error"}, None),
        ({"conditions": [AN_HOUR_LATER], "deleted": 5}, None),
        ({"conditions": [EVICTED], "grace": 120}, gone(None, 120, BY_EVICTION)),
        ({"conditions": [EVICTED], "deleted": 0, "grace": 120}, gone(120, 120, BY_EVICTION)),
        ({"conditions": [EVICTED], "phase": "Failed", "ended": 7}, gone(7, 30, BY_EVICTION)),
        ({"conditions": [EVICTED], "phase": "Failed"}, gone(0, 30, BY_EVICTION)),
        ({"conditions": [], "phase": "Failed", "reason": "Evicted", "ended": 4}, gone(4, 30, "Failed: Evicted")),
        ({"conditions": [], "phase": "Failed", "reason": "BidFailed"}, gone(None, 30, "Failed: BidFailed")),
        ({"conditions": [EXPIRED]}, gone(180, 180, "ContainerInstanceExpired: Outbid")),
        ({"conditions": [EXPIRED, EVICTED], "deleted": 0}, gone(30, 30, BY_EVICTION)),
        ({"conditions": [disruption("PreemptionByScheduler", status="False")]}, WITHDRAWN),
        ({"conditions": [{**EXPIRED, "status": "False"}, disruption("X", status="Unknown")]}, None),
        ({"conditions": [EVICTED], "phase": "Succeeded"}, None),
        ({"conditions": [EVICTED], "annotations": {MANAGED: "false"}}, None),
        ({"conditions": [], "deleted": 0}, None),
    ],
)
def test_both_say_the_same_about_a_pod(says: Any, state: dict[str, Any], said: PodVerdict | None) -> None:
    """Whether it is reclaimed, when it is gone at the latest, and in whose words."""
    conditions = state["conditions"]
    others = {name: value for name, value in state.items() if name != "conditions"}
    assert says(manifest(*conditions, **others)) == said
