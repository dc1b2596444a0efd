"""Whether the end of a pod is a reclaim, and what is reported of it. Pure.

A reclaim is what somebody other than the pod's owner does to it. A deletion alone never is one: users, scale-ins and
the garbage collector after a deleted job all ask for just that. Whoever takes capacity away says so beforehand, by the
condition DisruptionTarget: the scheduler (preemption), the eviction API, the taint manager, the pod garbage collector
and the kubelet (pressure, shutdown). Kubelets say it by the reason of the failure too, older ones by that alone.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from node_agent.notices import Announcement, NoticeReport, SourceName, Subject, SubjectKind
from node_agent.pod import Disruption, Phase, Pod

SOURCE = SourceName("kubernetes")

# Pressure; making room for a critical pod; a node that shuts down, or did when the pod arrived.
_KUBELET_REASONS = frozenset({"Evicted", "Preempting", "Terminated", "Shutdown", "NodeShutdown"})
_BY_KUBELET = "TerminationByKubelet"
# What two control-plane machines' clocks may differ by before the order of two events counts.
_SLACK = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The pod will be, or was, taken away.

    Attributes:
        message: By whom and why, for people.
        ends: When its last process is gone, by the API server's clock; None where nobody says.
    """

    message: str
    ends: datetime | None


@dataclass(frozen=True, slots=True)
class Spared:
    """Somebody wanted the pod gone, and does not any more."""


def verdict(pod: Pod) -> Reclaim | Spared | None:
    """What the present state of a pod says about a reclaim; None: nothing."""
    if not pod.opted_in or pod.phase is Phase.SUCCEEDED:
        return None
    disruption = pod.disruption
    if disruption is not None and disruption.holds:
        return None if _ending_already(pod, disruption) else _disrupted(pod, disruption)
    if pod.phase is Phase.FAILED and pod.reason in _KUBELET_REASONS:
        return Reclaim(_sentence("Failed", pod.reason, pod.message), pod.ended_at)
    return None if disruption is None else Spared()


def report(
    last: NoticeReport | None, pod: Pod, said: Reclaim | Spared | None, now: float, wall: float
) -> NoticeReport | None:
    """What is news to the supervisor.

    Args:
        last: The last report about this pod in this agent's life, None before the first.
        pod: Which pod it is about.
        said: The verdict on it.
        now: The monotonic instant of the verdict.
        wall: The same in Unix seconds of the API server's clock.
    """
    subject = Subject(SubjectKind.POD, f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.uid)
    revision = last.revision + 1 if last else 1
    match said:
        case Reclaim():
            left = None if said.ends is None else min(said.ends.timestamp() - wall, pod.grace)
            gone_at = None if left is None else now + left
            new = NoticeReport(SOURCE, subject, revision, Announcement.ACTIVE, gone_at, said.ends, said.message)
        case Spared():
            # Also where this agent announced nothing: the one before it may have.
            new = NoticeReport(SOURCE, subject, revision, Announcement.WITHDRAWN)
        case None:
            return None
    return None if last is not None and _same(last, new) else new


def _disrupted(pod: Pod, disruption: Disruption) -> Reclaim:
    return Reclaim(_sentence("DisruptionTarget", disruption.reason, disruption.message), _ends(pod, disruption))


def _ends(pod: Pod, disruption: Disruption) -> datetime | None:
    if pod.phase is Phase.FAILED:
        return pod.ended_at or disruption.since
    if pod.deleted_at is not None:
        return pod.deleted_at
    if disruption.reason == _BY_KUBELET and disruption.since is not None:
        # It deletes nothing: it ends the processes at once, and gives them the pod's own grace at most.
        return disruption.since + timedelta(seconds=pod.grace)
    # The deletion follows within milliseconds, and brings the deadline; or the disruption does not happen.
    return None


def _ending_already(pod: Pod, disruption: Disruption) -> bool:
    """Whether the pod had been asked to end, or had ended, before anybody disrupted it."""
    asked = pod.deleted_at - timedelta(seconds=pod.grace) if pod.deleted_at else None
    ended = pod.ended_at if pod.phase is Phase.FAILED else None
    return any(
        before is not None and disruption.since is not None and before + _SLACK < disruption.since
        for before in (asked, ended)
    )


def _sentence(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


def _same(old: NoticeReport, new: NoticeReport) -> bool:
    return (old.announcement, old.deadline, old.message) == (new.announcement, new.deadline, new.message)
