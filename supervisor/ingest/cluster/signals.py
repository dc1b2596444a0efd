"""Derives signals from pods and nodes, from taints and annotations of nodes, and from Events. Pure.

Which end of a pod is a reclaim is `servicekit.spot`'s, as for the agents.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from servicekit.bounds import instant_of, one_line, unix_seconds
from servicekit.spot import PodCondition, PodReclaim, PodState, classify
from supervisor.cluster.annotations import DRAIN, DRAIN_AT
from supervisor.cluster.events import ClusterEvent
from supervisor.cluster.objects import SCALE_IN_TAINTS, Node, ObjectCondition, Pod, PodPhase
from supervisor.decide.notices import Signal
from supervisor.domain import notice as notices
from supervisor.domain.ids import Source

_NODE_EXPIRED = "InstanceExpired"

_MAINTENANCE_PLANNED = "MaintenancePlanned"
"""The node condition of KEP-5683; it names no time."""

_MAINTENANCE_LABEL = "cloud.google.com/scheduled-maintenance-time"
_UNIX_SECONDS = re.compile(r"[0-9]{1,11}", re.ASCII)


def pod_subject(pod: Pod) -> notices.Subject:
    """Returns the subject of notices about a pod."""
    return notices.Subject(notices.SubjectKind.POD, f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.uid)


def node_subject(node: Node) -> notices.Subject:
    """Returns the subject of the API server's notices about a node."""
    return notices.Subject(notices.SubjectKind.NODE, node.metadata.name, node.metadata.uid)


def pod_signal(pod: Pod) -> Signal | None:
    """Returns the signal of an opted-in pod's conditions; None if they neither announce nor deny a reclaim."""
    if not pod.opted_in:
        return None
    state = PodState(
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
    classified = classify(state)
    if classified is None:
        return None
    withdrawn = Signal(
        source=notices.POD_CONDITION,
        subject=pod_subject(pod),
        announcement=notices.Announcement.WITHDRAWN,
        revision=pod.metadata.version,
    )
    if not isinstance(classified, PodReclaim):
        return withdrawn
    at = unix_seconds(classified.deadline)
    return _announced(withdrawn, at, one_line(classified.message), lead=classified.lead)


def node_signal(node: Node, lead: float) -> Signal | None:
    """Returns the signal of a node's condition; None if its status is unknown. `lead` is the default in seconds."""
    condition = _condition(node.conditions, _NODE_EXPIRED)
    if condition is None or condition.status not in ("True", "False"):
        return None
    withdrawn = _withdrawn(notices.NODE_CONDITION, node)
    if condition.status == "False":
        return withdrawn
    at = unix_seconds(condition.last_transition_time)
    message = _sentence(condition.type, condition.reason, condition.message)
    return _announced(withdrawn, None if at is None else at + lead, message, lead=lead)


def maintenance_signal(node: Node) -> Signal | None:
    """Returns the signal of a node's announced maintenance, by GKE's label or the condition `MaintenancePlanned`.

    None if neither is there and the condition, or the node, cannot be read: that withdraws nothing.
    """
    text = node.labels.get(_MAINTENANCE_LABEL, "")
    at = float(text) if _UNIX_SECONDS.fullmatch(text) else None  # Another value counts as no label.
    condition, message = _condition(node.conditions, _MAINTENANCE_PLANNED), _MAINTENANCE_LABEL
    withdrawn = _withdrawn(notices.NODE_MAINTENANCE, node)
    if condition is not None and condition.status == "True":
        message = _sentence(condition.type, condition.reason, condition.message)
    elif at is None:
        is_unknown = node.unread or (condition is not None and condition.status != "False")
        return None if is_unknown else withdrawn
    return replace(_announced(withdrawn, at, message), notice_class=notices.NoticeClass.SCHEDULED)


def drain_signal(node: Node) -> Signal:
    """Returns the signal of a node that a person drains by an annotation; `false` counts as none."""
    withdrawn = _withdrawn(notices.OPERATOR, node)
    text = node.annotations.get(DRAIN, "false")
    if text == "false":
        return withdrawn
    try:
        deadline = unix_seconds(datetime.fromisoformat(node.annotations.get(DRAIN_AT, "")))
    except ValueError:  # A typing error must not keep a node in use.
        deadline = None
    announced = "" if deadline is None else instant_of(deadline).isoformat()
    return replace(_announced(withdrawn, deadline, one_line(text)), announced=announced)


def taint_signals(node: Node, leads: Mapping[str, float | None], now: float) -> Iterator[Signal]:
    """Yields the signals of a node's taints: one for the taints of autoscalers, and one for all others.

    Termination handlers, autoscalers and clouds put them on a node. There are no signals if the node cannot be read,
    which withdraws nothing.

    Args:
        node: The node.
        leads: By the key of each taint that announces a reclaim, the seconds from its first sight to the deadline.
            None: the taint names no time, and is a hint.
        now: Unix seconds of the cluster's clock. Most taints have no time of their own.
    """
    keys = {taint.key for taint in node.taints} & leads.keys()
    for source, found in ((notices.NODE_TAINT, keys - SCALE_IN_TAINTS), (notices.SCALE_IN, keys & SCALE_IN_TAINTS)):
        withdrawn = _withdrawn(source, node)
        if not found:
            if not node.unread:
                yield withdrawn
            continue
        urgency = {key: math.inf if (lead := leads[key]) is None else lead for key in found}
        key = min(found, key=lambda each: (urgency[each], each))
        announced, lead = replace(withdrawn, announcement=notices.Announcement.ACTIVE, message=key), leads[key]
        if lead is None:
            yield replace(announced, notice_class=notices.NoticeClass.HINT)
        else:
            yield replace(announced, deadline=now + lead, lead=lead)


def event_signal(events: Iterable[tuple[ClusterEvent, float]], subject: notices.Subject) -> Signal | None:
    """Returns the signal of the latest Event about a subject; each Event comes with its lead in seconds."""
    signals = []
    for event, lead in events:
        at = unix_seconds(event.at)
        signal = Signal(
            source=notices.EVENT,
            subject=subject,
            announcement=notices.Announcement.ACTIVE,
            # Events may have an etcd of their own, whose versions restart when it is lost.
            session=int(at or 0),
            revision=event.metadata.version,
        )
        message = _sentence(event.reason, event.message)
        signals.append(_announced(signal, None if at is None else at + lead, message, lead=lead))
    return max(signals, key=lambda signal: (signal.session, signal.revision), default=None)


def drill_signal(events: Iterable[ClusterEvent], subject: notices.Subject) -> Signal | None:
    """Returns the signal of the latest valid Event that starts a drill on a subject, or ends it (lead 0)."""
    signals = []
    for event in events:
        # By the API server's clock: the clock of the requesting machine may be wrong.
        at = unix_seconds(event.metadata.creation_timestamp)
        try:
            lead = float(event.metadata.annotations.simulated_lead)
        except ValueError:
            continue
        if at is None or not (lead == 0 or notices.SHORTEST_SECONDS <= lead <= notices.LONGEST_SECONDS):
            continue
        withdrawn = Signal(
            source=notices.SIMULATED,
            subject=subject,
            announcement=notices.Announcement.WITHDRAWN,
            session=int(at),
            revision=event.metadata.version,
        )
        signal = _announced(withdrawn, at + lead, _sentence(event.message), lead=lead)
        signals.append(signal if lead else replace(signal, announcement=notices.Announcement.WITHDRAWN))
    return max(signals, key=lambda signal: (signal.session, signal.revision), default=None)


def _withdrawn(source: Source, node: Node) -> Signal:
    return Signal(
        source=source,
        subject=node_subject(node),
        announcement=notices.Announcement.WITHDRAWN,
        revision=node.metadata.version,
    )


def _announced(signal: Signal, at: float | None, message: str, *, lead: float | None = None) -> Signal:
    """Returns the signal that announces that its subject will be gone, with the instant if it is known."""
    return replace(
        signal,
        announcement=notices.Announcement.ACTIVE,
        deadline=at,
        announced="" if at is None else instant_of(at).isoformat().replace("+00:00", "Z"),
        lead=lead,
        message=message,
    )


def _condition(conditions: Iterable[ObjectCondition], kind: str) -> ObjectCondition | None:
    return next((each for each in conditions if each.type == kind), None)


def _sentence(*parts: str) -> str:
    return one_line(": ".join(part for part in parts if part))
