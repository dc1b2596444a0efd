"""What agents may say about pods: about those of their own node, and about so many."""

from collections.abc import Callable, Container

from supervisor.domain.ids import Host, NoticeId
from supervisor.domain.notice import Report, Subject, SubjectKind
from supervisor.ingest.errors import MalformedError, TooManyError

MAX_PODS = 1024
"""Kept of one node, those of the last 24 h included: a node has 250 pods at most, which change."""


class PodReports:
    """Admits reports about pods.

    Args:
        node_of: The node that a pod is bound to, which never changes; None where it is not known.
        kept: The notices that there are now.
    """

    def __init__(self, node_of: Callable[[Subject], Host | None], kept: Callable[[], Container[NoticeId]]) -> None:
        self._node_of = node_of
        self._kept = kept
        self._brought: dict[Host, set[NoticeId]] = {}

    def admit(self, node: Host, said: Report) -> None:
        """Lets a report of that node's agent pass; those about the node itself always do.

        Raises:
            MalformedError: The pod is another node's.
            TooManyError: The agent has brought more than anything honest.
        """
        if said.subject.kind is not SubjectKind.POD:
            return
        if self._node_of(said.subject) not in (None, node):
            raise MalformedError(f"{said.subject.name} is not on {node}")
        brought = self._brought.setdefault(node, set())
        if said.id not in brought and len(brought) >= MAX_PODS:
            kept = self._kept()
            brought.intersection_update([each for each in brought if each in kept])
        if said.id not in brought and len(brought) >= MAX_PODS:
            raise TooManyError(f"more than {MAX_PODS} pods of {node} are noticed")
        brought.add(said.id)

    def forget_others(self, nodes: Container[Host]) -> None:
        """Forgets the nodes that are not among these."""
        for node in [node for node in self._brought if node not in nodes]:
            del self._brought[node]
