"""What the state of a pod or a node, or an Event about it, says of a reclaim. Pure.

A deletion alone is no reclaim: users, scale-ins and the garbage collector after a deleted job ask for just that.
Whoever takes capacity away says so before.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from supervisor.cluster.events import ClusterEvent
from supervisor.cluster.objects import Condition, Node, Pod, PodPhase
from supervisor.decide.restated import Word
from supervisor.domain.drill import LONGEST_SECONDS, SHORTEST_SECONDS
from supervisor.domain.ids import Source
from supervisor.domain.notice import (
    EVENT,
    NODE_CONDITION,
    POD_CONDITION,
    SIMULATED,
    Announcement,
    Subject,
    SubjectKind,
)
from supervisor.ingest.text import one_line

_DISRUPTED = "DisruptionTarget"
_POD_EXPIRED = "ContainerInstanceExpired"
_NODE_EXPIRED = "InstanceExpired"
_POD_EXPIRED_LEAD = 180.0
"""Seconds: what the Event that goes with the condition promises."""

_FAILED_BY_RECLAIM = frozenset(
    # By the kubelet: pressure, room for a critical pod, a node that shuts down; by a virtual node: outbid.
    {"Evicted", "Preempting", "Terminated", "Shutdown", "NodeShutdown", "BidFailed"}
)
_BY_KUBELET = "TerminationByKubelet"
_USUAL_GRACE = 30.0
_SLACK = 5.0
"""Seconds by which the clocks of two machines may differ before the order of two events counts."""


def pod_subject(pod: Pod) -> Subject:
    """A pod as notices name it."""
    return Subject(SubjectKind.POD, f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.uid)


def node_subject(node: Node) -> Subject:
    """A node as notices from the API server name it."""
    return Subject(SubjectKind.NODE, node.name, node.metadata.uid)


@dataclass(frozen=True, slots=True)
class _End:
    """An end that is announced; the fields are those of a Word."""

    message: str
    ends: float | None
    lead: float | None


def pod_word(pod: Pod) -> Word | None:
    """What an opted-in pod's conditions say; None: nothing, neither that it will be gone nor that it will not."""
    if not pod.opted_in or pod.phase is PodPhase.SUCCEEDED:
        return None
    ends = list(_pod_ends(pod))
    if ends:
        first = min(ends, key=lambda end: float("inf") if end.ends is None else end.ends)
        return _word(POD_CONDITION, pod_subject(pod), pod.metadata.version, first)
    states = {each.status for each in pod.conditions if each.type in (_DISRUPTED, _POD_EXPIRED)}
    return _word(POD_CONDITION, pod_subject(pod), pod.metadata.version, None) if states == {"False"} else None


def node_word(node: Node, lead: float) -> Word | None:
    """What a node's condition says; one that is unknown says nothing. `lead` is what is usual, in seconds."""
    condition = _condition(node.conditions, _NODE_EXPIRED)
    if condition is None or condition.status not in ("True", "False"):
        return None
    end = _after(condition, lead) if condition.status == "True" else None
    return _word(NODE_CONDITION, node_subject(node), node.metadata.version, end)


def event_word(events: Iterable[tuple[ClusterEvent, float]], subject: Subject) -> Word | None:
    """What the latest of the Events about a subject says; each comes with its lead in seconds."""
    words = [_event_word(event, lead, subject) for event, lead in events]
    return max(words, key=lambda word: (word.session, word.revision), default=None)


def drill_word(events: Iterable[ClusterEvent], subject: Subject) -> Word | None:
    """What the latest of the Events says that ask for a drill of a subject, or for its end; others say nothing."""
    words = [word for word in (_drill_word(event, subject) for event in events) if word is not None]
    return max(words, key=lambda word: (word.session, word.revision), default=None)


def _drill_word(event: ClusterEvent, subject: Subject) -> Word | None:
    # By the API server's own clock: whoever asks for a drill may sit at a machine whose clock is wrong.
    at, lead = _seconds(event.metadata.creation_timestamp), _drill_lead(event.simulated_lead)
    if at is None or lead is None:
        return None
    return Word(
        source=SIMULATED,
        subject=subject,
        announcement=Announcement.ACTIVE if lead else Announcement.WITHDRAWN,
        session=int(at),
        revision=event.metadata.version,
        ends=at + lead,
        announced=_instant(at + lead),
        lead=lead,
        message=_sentence(event.message),
    )


def _drill_lead(text: str) -> float | None:
    """In seconds, 0 for the end of a drill; None where that is no lead that a drill may have."""
    try:
        lead = float(text)
    except ValueError:
        return None
    return lead if lead == 0 or SHORTEST_SECONDS <= lead <= LONGEST_SECONDS else None


def _event_word(event: ClusterEvent, lead: float, subject: Subject) -> Word:
    at = _seconds(event.at)
    return Word(
        source=EVENT,
        subject=subject,
        announcement=Announcement.ACTIVE,
        # Events may be kept in an etcd of their own, whose versions begin anew when it is lost.
        session=int(at or 0),
        revision=event.metadata.version,
        ends=_plus(at, lead),
        announced=_instant(_plus(at, lead)),
        lead=lead,
        message=_sentence(event.reason, event.message),
    )


def _pod_ends(pod: Pod) -> Iterator[_End]:
    expired, disrupted = _condition(pod.conditions, _POD_EXPIRED), _condition(pod.conditions, _DISRUPTED)
    if expired is not None and expired.status == "True":
        yield _after(expired, _POD_EXPIRED_LEAD)
    if disrupted is not None and disrupted.status == "True":
        if not _ending_already(pod, disrupted):
            yield _End(_said(disrupted), _ends(pod, disrupted), pod.grace)
    elif pod.phase is PodPhase.FAILED and pod.reason in _FAILED_BY_RECLAIM:
        yield _End(_sentence("Failed", pod.reason, pod.message), None, None)


def _after(condition: Condition, lead: float) -> _End:
    return _End(_said(condition), _plus(_seconds(condition.last_transition_time), lead), lead)


def _ends(pod: Pod, disrupted: Condition) -> float | None:
    since = _seconds(disrupted.last_transition_time)
    if pod.phase is PodPhase.FAILED:
        return since
    if pod.deleted_at is not None:
        return pod.deleted_at.timestamp()
    # The kubelet deletes nothing: it ends the processes at once. For all others the deletion follows within
    # milliseconds, and brings the deadline; or it does not happen.
    return _plus(since, _USUAL_GRACE) if disrupted.reason == _BY_KUBELET else None


def _ending_already(pod: Pod, disrupted: Condition) -> bool:
    """Whether the pod had been asked to end before anybody disrupted it."""
    since = _seconds(disrupted.last_transition_time)
    if pod.deleted_at is None or since is None:
        return False
    return pod.deleted_at.timestamp() - (pod.grace or 0.0) + _SLACK < since


def _word(source: Source, subject: Subject, version: int, end: _End | None) -> Word:
    """A condition's announcement; without an end, that there is none."""
    if end is None:
        return Word(source=source, subject=subject, announcement=Announcement.WITHDRAWN, revision=version)
    return Word(
        source=source,
        subject=subject,
        announcement=Announcement.ACTIVE,
        revision=version,
        ends=end.ends,
        announced=_instant(end.ends),
        lead=end.lead,
        message=end.message,
    )


def _condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    return next((each for each in conditions if each.type == kind), None)


def _said(condition: Condition) -> str:
    return _sentence(condition.type, condition.reason, condition.message)


def _instant(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def _sentence(*parts: str) -> str:
    return one_line(": ".join(part for part in parts if part))


def _seconds(instant: datetime | None) -> float | None:
    return None if instant is None else instant.timestamp()


def _plus(at: float | None, seconds: float) -> float | None:
    return None if at is None else at + seconds
