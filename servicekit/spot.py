"""Reads spot capacity from the API server's objects, by the same rules for node agents and supervisors. Pure.

The labels of a Node describe its machine. The state of a pod shows a reclaim, which ends the pod against its owner's
will. A deletion alone is never a reclaim: users, scale-ins and the garbage collector after a deleted job delete pods
too. A component that takes capacity away first sets the condition DisruptionTarget: the scheduler (preemption), the
eviction API, the taint manager, the pod garbage collector and the kubelet (pressure, shutdown). Kubelets also set the
reason of the failure, older ones only that. A virtual node has a condition of its own.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from servicekit.bounds import later, nearest_seconds, unix_seconds

_REGION = "topology.kubernetes.io/region"
_ZONE = "topology.kubernetes.io/zone"
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
# Its value is the cloud's word for how the price is set; the others only tell spot from the rest.
_STRATEGY = "node.alibabacloud.com/spot-strategy"
_IS_SPOT: Mapping[str, Mapping[str, bool]] = {
    _STRATEGY: {"NoSpot": False, "SpotAsPriceGo": True, "SpotWithPriceLimit": True},
    "eks.amazonaws.com/capacityType": {"SPOT": True, "ON_DEMAND": False},
    "cloud.google.com/gke-spot": {"true": True},
    "cloud.google.com/gke-preemptible": {"true": True},
    "cloud.google.com/gke-provisioning": {"spot": True, "preemptible": True, "standard": False},
    "kubernetes.azure.com/scalesetpriority": {"spot": True, "regular": False},
    "karpenter.sh/capacity-type": {"spot": True, "on-demand": False, "reserved": False},
}
# Characters that Kubernetes allows in the value of a label.
_MAX_VALUE = 63

DISRUPTED = "DisruptionTarget"
EXPIRED = "ContainerInstanceExpired"

_FAILED_BY_RECLAIM = frozenset(
    # Set by the kubelet for pressure, room for a critical pod, and a node that shuts down or was shutting down when the
    # pod arrived; by a virtual node that was outbid.
    {"Evicted", "Preempting", "Terminated", "Shutdown", "NodeShutdown", "BidFailed"}
)
_BY_KUBELET = "TerminationByKubelet"
_EXPIRED_LEAD = 180.0
"""Seconds: the grace that the Event with the condition promises."""

_USUAL_GRACE = 30.0
"""Seconds: the API server's default for a pod's grace."""

_SLACK = timedelta(seconds=5)
"""The clocks of two machines may differ by this much before the order of two events counts."""


@dataclass(frozen=True, slots=True)
class PodCondition:
    """A condition of a pod; `since` is when its status last changed."""

    type: str
    status: str
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """The parts of a pod's state that distinguish a reclaim from every other end.

    Attributes:
        succeeded: Whether its phase is Succeeded.
        failed: Whether its phase is Failed.
        reason: Why it failed, in one word.
        message: Why it failed, for people.
        conditions: At least those of the types `DISRUPTED` and `EXPIRED`.
        grace: Seconds from the request for its end to its end; see `grace_of`.
        deleted_at: When its grace ends or ended; None while nobody has asked for its deletion.
        ended_at: When its last container ended; see `ended_at_of`.
    """

    succeeded: bool = False
    failed: bool = False
    reason: str = ""
    message: str = ""
    conditions: Sequence[PodCondition] = ()
    grace: float = _USUAL_GRACE
    deleted_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PodReclaim:
    """The pod will be reclaimed, or was.

    Attributes:
        message: By whom and why, for people.
        deadline: When its last process is gone, by the API server's clock; None where it is not known.
        lead: The most seconds that can be left until then, however much the clocks differ.
    """

    message: str
    deadline: datetime | None
    lead: float


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A reclaim of the pod was announced, but does not happen."""


def grace_of(asked: float | None, usual: float | None) -> float:
    """Returns a pod's grace in seconds: from the request for its deletion, else from its spec, else the default."""
    return next((grace for grace in (asked, usual) if grace is not None), _USUAL_GRACE)


def ended_at_of(ends: Sequence[datetime | None]) -> datetime | None:
    """Returns when the last of a pod's containers ended; None while one of them may be running."""
    known = [end for end in ends if end is not None]
    return max(known, key=nearest_seconds) if known and len(known) == len(ends) else None


def classify(pod: PodState) -> PodReclaim | Withdrawn | None:
    """Classifies a pod's state; None if it shows neither that the pod is reclaimed nor that it is not."""
    if pod.succeeded:
        return None
    ends = [(unix_seconds(reclaim.deadline), reclaim) for reclaim in _reclaims(pod)]
    if ends:
        # The one that comes first; one whose end is not known comes last.
        return min(ends, key=lambda end: math.inf if end[0] is None else end[0])[1]
    # A status that is neither True nor False says nothing.
    statuses = {each.status for each in pod.conditions if each.type in (DISRUPTED, EXPIRED)}
    return Withdrawn() if statuses == {"False"} else None


def _reclaims(pod: PodState) -> Iterator[PodReclaim]:
    holding = [each for each in pod.conditions if each.status == "True"]
    expired = next((each for each in holding if each.type == EXPIRED), None)
    disrupted = next((each for each in holding if each.type == DISRUPTED), None)
    if expired is not None:
        deadline = None if expired.since is None else later(expired.since, _EXPIRED_LEAD)
        yield PodReclaim(_sentence(expired.type, expired.reason, expired.message), deadline, _EXPIRED_LEAD)
    if disrupted is None:
        if pod.failed and pod.reason in _FAILED_BY_RECLAIM:
            yield PodReclaim(_sentence("Failed", pod.reason, pod.message), _known(pod.ended_at), pod.grace)
        return
    # The pod may have ended, or its deletion may have been asked for, before the disruption: then it is none.
    since = _known(disrupted.since)
    asked = later(pod.deleted_at, -pod.grace) if pod.deleted_at else None
    ended = _known(pod.ended_at) if pod.failed else None
    if not any(before is not None and since is not None and before + _SLACK < since for before in (asked, ended)):
        message = _sentence(disrupted.type, disrupted.reason, disrupted.message)
        yield PodReclaim(message, _ends(pod, disrupted), pod.grace)


def _ends(pod: PodState, disrupted: PodCondition) -> datetime | None:
    if pod.failed:
        return _known(pod.ended_at) or _known(disrupted.since)
    if pod.deleted_at is not None:
        return _known(pod.deleted_at)
    if disrupted.reason == _BY_KUBELET and disrupted.since is not None:
        # The kubelet deletes nothing: it ends the processes at once, with the pod's own grace at most.
        return later(disrupted.since, pod.grace)
    # The deletion follows within milliseconds and has the deadline, or the disruption does not happen.
    return None


def _known(instant: datetime | None) -> datetime | None:
    """Returns an instant if it is within the bounds. Whoever writes a pod's status can write any instant."""
    return None if instant is None else later(instant, 0.0)


def _sentence(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class LabelledMachine:
    """A machine, described by the labels of its node.

    Attributes:
        region: Empty if it is unknown, as are the next two.
        zone: See `region`.
        instance_type: See `region`.
        is_spot: Whether the cloud can reclaim it; None if that is unknown.
        spot_strategy: The cloud's own word for how the price is set, or empty.
    """

    region: str
    zone: str
    instance_type: str
    is_spot: bool | None
    spot_strategy: str


def read_labels(labels: Mapping[str, str]) -> LabelledMachine:
    """Describes the machine of a Node by its labels. It ignores unknown values."""
    cut = {name: value[:_MAX_VALUE] for name, value in labels.items()}
    known = (values.get(cut.get(name, "")) for name, values in _IS_SPOT.items())
    return LabelledMachine(
        region=cut.get(_REGION, ""),
        zone=cut.get(_ZONE, ""),
        instance_type=cut.get(_INSTANCE_TYPE, ""),
        is_spot=next((is_spot for is_spot in known if is_spot is not None), None),
        spot_strategy=cut.get(_STRATEGY, ""),
    )
