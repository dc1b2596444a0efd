"""Derives the signal of a node that a person drains by an annotation. Pure."""

from datetime import datetime

from servicekit.bounds import instant_of, one_line, unix_seconds
from supervisor.cluster.annotations import DRAIN, DRAIN_AT
from supervisor.cluster.objects import Node
from supervisor.decide.notices import Signal
from supervisor.domain.notice import OPERATOR, Announcement
from supervisor.ingest.cluster.signals import node_subject


def drain_signal(node: Node) -> Signal:
    """The signal of a node's annotations: without them, or with the value `false`, nobody drains it."""
    text = node.annotations.get(DRAIN, "false")
    deadline = _instant(node.annotations.get(DRAIN_AT, ""))
    drained = text != "false"
    return Signal(
        source=OPERATOR,
        subject=node_subject(node),
        announcement=Announcement.ACTIVE if drained else Announcement.WITHDRAWN,
        revision=node.metadata.version,
        deadline=deadline if drained else None,
        announced="" if deadline is None or not drained else instant_of(deadline).isoformat(),
        message=one_line(text) if drained else "",
    )


def _instant(text: str) -> float | None:
    """The Unix seconds of an instant; None for other text, as a typing error must not keep a node in use."""
    try:
        return unix_seconds(datetime.fromisoformat(text))
    except ValueError:
        return None
