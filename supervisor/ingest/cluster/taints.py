"""Derives the signal of the taints that termination handlers, autoscalers and clouds put on a node. Pure."""

import math
from collections.abc import Mapping
from dataclasses import replace

from supervisor.cluster.objects import Node
from supervisor.decide.signals import Signal
from supervisor.domain.notice import NODE_TAINT, Announcement, NoticeClass
from supervisor.ingest.cluster.signals import node_subject


def taint_signal(node: Node, leads: Mapping[str, float | None], now: float) -> Signal | None:
    """The signal of a node's taints; None if the node cannot be read, which withdraws nothing.

    Args:
        node: The node.
        leads: By the key of each taint that announces a reclaim, the seconds from its first sight to the deadline.
            None: the taint names no time, and is a hint.
        now: Unix seconds of the cluster's clock. Most taints have no time of their own.
    """
    keys = {taint.key for taint in node.taints} & leads.keys()
    signal = Signal(
        source=NODE_TAINT,
        subject=node_subject(node),
        announcement=Announcement.WITHDRAWN,
        revision=node.metadata.version,
    )
    if not keys:
        return None if node.unread else signal
    key = min(keys, key=lambda each: (_urgency(leads[each]), each))
    announced, lead = replace(signal, announcement=Announcement.ACTIVE, message=key), leads[key]
    if lead is None:
        return replace(announced, notice_class=NoticeClass.HINT)
    return replace(announced, deadline=now + lead, lead=lead)


def _urgency(lead: float | None) -> float:
    return math.inf if lead is None else lead
