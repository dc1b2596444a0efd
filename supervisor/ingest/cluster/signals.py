"""Derives signals from the state of pods and nodes, and from Events about them. Pure.

Which end of a pod is a reclaim is `servicekit.spot`'s, as for the agents.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from servicekit.bounds import instant_of, one_line, unix_seconds
from servicekit.spot import PodCondition, PodReclaim, PodState, classify
from supervisor.cluster.events import ClusterEvent
from supervisor.cluster.objects import Node, ObjectCondition, Pod, PodPhase
from supervisor.decide.notices import Signal
from supervisor.domain.ids import Source
from supervisor.domain.notice import (
    EVENT,
    LONGEST_SECONDS,
    NODE_CONDITION,
    NODE_MAINTENANCE,
    POD_CONDITION,
    SHORTEST_SECONDS,
    SIMULATED,
    Announcement,
    NoticeClass,
    Subject,
    SubjectKind,
)

_NODE_EXPIRED = "InstanceExpired"

_MAINTENANCE_PLANNED = "MaintenancePlanned"
"""The node condition of KEP-5683; it names no time."""

_MAINTENANCE_LABEL = "cloud.google.com/scheduled-maintenance-time"
_UNIX_SECONDS = re.compile(r"[0-9]{1,11}", re.ASCII)


def pod_subject(pod: Pod) -> Subject:
    """The subject of notices about a pod."""
    return Subject(SubjectKind.POD, f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.uid)


def node_subject(node: Node) -> Subject:
    """The subject of the API server's notices about a node."""
    return Subject(SubjectKind.NODE, node.name, node.metadata.uid)


@dataclass(frozen=True, slots=True)
class _End:
    """An announced end; the fields are those of `Signal`."""

    message: str
    deadline: float | None
    lead: float | None


def pod_signal(pod: Pod) -> Signal | None:
    """The signal of an opted-in pod's conditions; None if they neither announce nor deny a reclaim."""
    classified = classify(_state(pod)) if pod.opted_in else None
    if classified is None:
        return None
    end = (
        _End(one_line(classified.message), unix_seconds(classified.deadline), classified.lead)
        if isinstance(classified, PodReclaim)
        else None
    )
    return _condition_signal(POD_CONDITION, pod_subject(pod), pod.metadata.version, end)


def node_signal(node: Node, lead: float) -> Signal | None:
    """The signal of a node's condition; None if its status is unknown. `lead` is the default lead in seconds."""
    condition = _condition(node.conditions, _NODE_EXPIRED)
    if condition is None or condition.status not in ("True", "False"):
        return None
    end = _after(condition, lead) if condition.status == "True" else None
    return _condition_signal(NODE_CONDITION, node_subject(node), node.metadata.version, end)


def maintenance_signal(node: Node) -> Signal | None:
    """The signal of a node's announced maintenance, by GKE's label or the condition `MaintenancePlanned`.

    None if neither is there and the condition, or the node, cannot be read: that withdraws nothing.
    """
    subject, version = node_subject(node), node.metadata.version
    at, condition = _scheduled_at(node), _condition(node.conditions, _MAINTENANCE_PLANNED)
    planned = condition is not None and condition.status == "True"
    if at is None and not planned:
        if node.unread or (condition is not None and condition.status != "False"):
            return None
        return Signal(source=NODE_MAINTENANCE, subject=subject, announcement=Announcement.WITHDRAWN, revision=version)
    return Signal(
        source=NODE_MAINTENANCE,
        subject=subject,
        announcement=Announcement.ACTIVE,
        revision=version,
        deadline=at,
        announced=_instant(at),
        message=_MAINTENANCE_LABEL if condition is None or not planned else _condition_message(condition),
        notice_class=NoticeClass.SCHEDULED,
    )


def _scheduled_at(node: Node) -> float | None:
    """The Unix seconds in GKE's label; a value that is none counts as no label."""
    text = node.labels.get(_MAINTENANCE_LABEL, "")
    return float(text) if _UNIX_SECONDS.fullmatch(text) else None


def event_signal(events: Iterable[tuple[ClusterEvent, float]], subject: Subject) -> Signal | None:
    """The signal of the latest Event about a subject; each Event comes with its lead in seconds."""
    signals = [_event_signal(event, lead, subject) for event, lead in events]
    return max(signals, key=lambda signal: (signal.session, signal.revision), default=None)


def drill_signal(events: Iterable[ClusterEvent], subject: Subject) -> Signal | None:
    """The signal of the latest valid Event that requests a drill on a subject, or its end."""
    signals = [signal for signal in (_drill_signal(event, subject) for event in events) if signal is not None]
    return max(signals, key=lambda signal: (signal.session, signal.revision), default=None)


def _drill_signal(event: ClusterEvent, subject: Subject) -> Signal | None:
    # By the API server's clock: the clock of the requesting machine may be wrong.
    at, lead = unix_seconds(event.metadata.creation_timestamp), _drill_lead(event.metadata.annotations.simulated_lead)
    if at is None or lead is None:
        return None
    return Signal(
        source=SIMULATED,
        subject=subject,
        announcement=Announcement.ACTIVE if lead else Announcement.WITHDRAWN,
        session=int(at),
        revision=event.metadata.version,
        deadline=at + lead,
        announced=_instant(at + lead),
        lead=lead,
        message=_sentence(event.message),
    )


def _drill_lead(text: str) -> float | None:
    """The lead in seconds, 0 for the end of a drill; None if it is invalid."""
    try:
        lead = float(text)
    except ValueError:
        return None
    return lead if lead == 0 or SHORTEST_SECONDS <= lead <= LONGEST_SECONDS else None


def _event_signal(event: ClusterEvent, lead: float, subject: Subject) -> Signal:
    at = unix_seconds(event.at)
    return Signal(
        source=EVENT,
        subject=subject,
        announcement=Announcement.ACTIVE,
        # Events may have an etcd of their own, whose versions restart when it is lost.
        session=int(at or 0),
        revision=event.metadata.version,
        deadline=_plus(at, lead),
        announced=_instant(_plus(at, lead)),
        lead=lead,
        message=_sentence(event.reason, event.message),
    )


def _state(pod: Pod) -> PodState:
    return PodState(
        succeeded=pod.phase is PodPhase.SUCCEEDED,
        failed=pod.phase is PodPhase.FAILED,
        reason=pod.reason,
        message=pod.message,
        conditions=[
            PodCondition(each.type, each.status, each.reason, each.message, each.last_transition_time)
            for each in pod.conditions
        ],
        grace=pod.grace,
        deleted_at=pod.deleted_at,
        ended_at=pod.ended_at,
    )


def _after(condition: ObjectCondition, lead: float) -> _End:
    return _End(_condition_message(condition), _plus(unix_seconds(condition.last_transition_time), lead), lead)


def _condition_signal(source: Source, subject: Subject, version: int, end: _End | None) -> Signal:
    """The signal of a condition: an announcement, or without an end its withdrawal."""
    if end is None:
        return Signal(source=source, subject=subject, announcement=Announcement.WITHDRAWN, revision=version)
    return Signal(
        source=source,
        subject=subject,
        announcement=Announcement.ACTIVE,
        revision=version,
        deadline=end.deadline,
        announced=_instant(end.deadline),
        lead=end.lead,
        message=end.message,
    )


def _condition(conditions: Iterable[ObjectCondition], kind: str) -> ObjectCondition | None:
    return next((each for each in conditions if each.type == kind), None)


def _condition_message(condition: ObjectCondition) -> str:
    return _sentence(condition.type, condition.reason, condition.message)


def _instant(at: float | None) -> str:
    return "" if at is None else instant_of(at).isoformat().replace("+00:00", "Z")


def _sentence(*parts: str) -> str:
    return one_line(": ".join(part for part in parts if part))


def _plus(at: float | None, seconds: float) -> float | None:
    return None if at is None else at + seconds
