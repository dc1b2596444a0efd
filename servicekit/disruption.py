"""The rule that reads a reclaim from the state of a pod, for node agents and supervisors alike. Pure.

A reclaim is what somebody other than the pod's owner does to it. A deletion alone never is one: users, scale-ins and
the garbage collector after a deleted job all ask for just that. Whoever takes capacity away says so beforehand, by the
condition DisruptionTarget: the scheduler (preemption), the eviction API, the taint manager, the pod garbage collector
and the kubelet (pressure, shutdown). Kubelets say it by the reason of the failure too, older ones by that alone. A
virtual node has a condition of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

DISRUPTED = "DisruptionTarget"
EXPIRED = "ContainerInstanceExpired"

_FAILED_BY_RECLAIM = frozenset(
    # By the kubelet: pressure, room for a critical pod, a node that shuts down, or did when the pod arrived; by a
    # virtual node: outbid.
    {"Evicted", "Preempting", "Terminated", "Shutdown", "NodeShutdown", "BidFailed"}
)
_BY_KUBELET = "TerminationByKubelet"
_EXPIRED_LEAD = timedelta(seconds=180)
"""The grace that the Event beside the condition promises."""

_USUAL_GRACE = 30.0
"""Seconds that the API server fills in where a pod does not say."""

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
    """The parts of a pod's state that tell a reclaim from every other end.

    Attributes:
        succeeded: Its phase.
        failed: Its phase.
        reason: Why it failed, in one word.
        message: The same for people.
        conditions: At least those of the types `DISRUPTED` and `EXPIRED`.
        grace: Seconds that it has from the request for its end; see `grace_of`.
        deleted_at: When its grace ends or ended; None while nobody asked for its deletion.
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
class Reclaim:
    """The pod will be, or was, taken away.

    Attributes:
        message: By whom and why, for people.
        deadline: When its last process is gone, by the API server's clock; None where nobody says.
        lead: The most seconds that there can be left until then, however the clocks differ.
    """

    message: str
    deadline: datetime | None
    lead: float


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Somebody wanted the pod gone, and does not any more."""


def grace_of(asked: float | None, usual: float | None) -> float:
    """A pod's grace in seconds: as its end was asked for, else as its spec says."""
    return next((grace for grace in (asked, usual) if grace is not None), _USUAL_GRACE)


def ended_at_of(ends: Sequence[datetime | None]) -> datetime | None:
    """When the last of a pod's containers ended; None while one of them may be running."""
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def classify(pod: PodState) -> Reclaim | Withdrawn | None:
    """What a pod's state says about a reclaim; None: neither that it will be gone nor that it will not."""
    if pod.succeeded:
        return None
    reclaims = list(_reclaims(pod))
    if reclaims:
        return min(
            reclaims, key=lambda reclaim: float("inf") if reclaim.deadline is None else reclaim.deadline.timestamp()
        )
    # One that is neither true nor false says nothing.
    statuses = {each.status for each in pod.conditions if each.type in (DISRUPTED, EXPIRED)}
    return Withdrawn() if statuses == {"False"} else None


def _reclaims(pod: PodState) -> Iterator[Reclaim]:
    expired, disrupted = _condition(pod, EXPIRED), _condition(pod, DISRUPTED)
    if expired is not None:
        deadline = None if expired.since is None else expired.since + _EXPIRED_LEAD
        yield Reclaim(_said(expired), deadline, _EXPIRED_LEAD.total_seconds())
    if disrupted is None:
        if pod.failed and pod.reason in _FAILED_BY_RECLAIM:
            yield Reclaim(_sentence("Failed", pod.reason, pod.message), pod.ended_at, pod.grace)
    elif not _ending_already(pod, disrupted):
        yield Reclaim(_said(disrupted), _ends(pod, disrupted), pod.grace)


def _condition(pod: PodState, kind: str) -> PodCondition | None:
    return next((each for each in pod.conditions if each.type == kind and each.status == "True"), None)


def _ends(pod: PodState, disrupted: PodCondition) -> datetime | None:
    if pod.failed:
        return pod.ended_at or disrupted.since
    if pod.deleted_at is not None:
        return pod.deleted_at
    if disrupted.reason == _BY_KUBELET and disrupted.since is not None:
        # It deletes nothing: it ends the processes at once, and gives them the pod's own grace at most.
        return disrupted.since + timedelta(seconds=pod.grace)
    # The deletion follows within milliseconds, and brings the deadline; or the disruption does not happen.
    return None


def _ending_already(pod: PodState, disrupted: PodCondition) -> bool:
    """Whether the pod had been asked to end, or had ended, before anybody disrupted it."""
    asked = pod.deleted_at - timedelta(seconds=pod.grace) if pod.deleted_at else None
    ended = pod.ended_at if pod.failed else None
    return any(
        before is not None and disrupted.since is not None and before + _SLACK < disrupted.since
        for before in (asked, ended)
    )


def _said(condition: PodCondition) -> str:
    return _sentence(condition.type, condition.reason, condition.message)


def _sentence(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
