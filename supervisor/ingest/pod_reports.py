"""Limits what agents may report about pods: only about pods of their own node, and only about so many."""

from collections.abc import Callable, Container

from supervisor.domain.ids import Host, NoticeId
from supervisor.domain.notice import Report, Subject, SubjectKind
from supervisor.ingest.errors import MalformedError, TooManyError

MAX_PODS = 1024
"""Pods of one node whose notices are kept, including the last 24 h: a node has at most 250 pods at a time."""


class PodReports:
    """Admits reports about pods.

    Args:
        node_of: Returns the node that a pod is bound to; None if it is unknown, "" if another pod has its uid.
        kept: Returns the ids of the stored notices.
    """

    def __init__(self, node_of: Callable[[Subject], Host | None], kept: Callable[[], Container[NoticeId]]) -> None:
        self._node_of = node_of
        self._kept = kept
        self._brought: dict[Host, set[NoticeId]] = {}

    def admit(self, node: Host, report: Report) -> None:
        """Checks a report of the node's agent; reports about the node itself always pass.

        Raises:
            MalformedError: The pod is on another node.
            TooManyError: The agent has reported too many pods.
        """
        if report.subject.kind is not SubjectKind.POD:
            return
        if self._node_of(report.subject) not in (None, node):
            raise MalformedError(f"{report.subject.name} is not on {node}")
        brought = self._brought.setdefault(node, set())
        if report.id not in brought and len(brought) >= MAX_PODS:
            kept = self._kept()
            brought.intersection_update([each for each in brought if each in kept])
        if report.id not in brought and len(brought) >= MAX_PODS:
            raise TooManyError(f"more than {MAX_PODS} pods of {node} have notices")
        brought.add(report.id)

    def forget_others(self, nodes: Container[Host]) -> None:
        """Forgets all other nodes."""
        for node in [node for node in self._brought if node not in nodes]:
            del self._brought[node]
