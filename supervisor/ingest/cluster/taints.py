"""Derives the signals of the taints that termination handlers, autoscalers and clouds put on a node. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from supervisor.cluster.objects import SCALE_IN_TAINTS, Node
from supervisor.decide.notices import Signal
from supervisor.domain.notice import NODE_TAINT, SCALE_IN, Announcement, NoticeClass
from supervisor.ingest.cluster.signals import node_subject


def taint_signals(node: Node, leads: Mapping[str, float | None], now: float) -> Iterator[Signal]:
    """The signals of a node's taints: one of the taints of autoscalers, and one of all others.

    There are none if the node cannot be read, which withdraws nothing.

    Args:
        node: The node.
        leads: By the key of each taint that announces a reclaim, the seconds from its first sight to the deadline.
            None: the taint names no time, and is a hint.
        now: Unix seconds of the cluster's clock. Most taints have no time of their own.
    """
    keys = {taint.key for taint in node.taints} & leads.keys()
    withdrawn = Signal(
        source=NODE_TAINT,
        subject=node_subject(node),
        announcement=Announcement.WITHDRAWN,
        revision=node.metadata.version,
    )
    for source, found in ((NODE_TAINT, keys - SCALE_IN_TAINTS), (SCALE_IN, keys & SCALE_IN_TAINTS)):
        if found:
            yield _announced(replace(withdrawn, source=source), {key: leads[key] for key in found}, now)
        elif not node.unread:
            yield replace(withdrawn, source=source)


def _announced(signal: Signal, leads: Mapping[str, float | None], now: float) -> Signal:
    """The announcement of the most urgent of these taints."""
    key = min(leads, key=lambda each: (_urgency(leads[each]), each))
    announced, lead = replace(signal, announcement=Announcement.ACTIVE, message=key), leads[key]
    if lead is None:
        return replace(announced, notice_class=NoticeClass.HINT)
    return replace(announced, deadline=now + lead, lead=lead)


def _urgency(lead: float | None) -> float:
    return math.inf if lead is None else lead
