"""Watches the pods of this node through the API server, and reports those that are being taken away."""

import asyncio

import structlog

from node_agent import reclaim
from node_agent.notices import NoticeReport, SourceState, SourceStatus, SubjectKind
from node_agent.outbox import Outbox, OutboxFull
from node_agent.pod import PODS, Pod, read_pod
from node_agent.watchdog import Watchdog
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient, Selection
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer

# Seconds between two looks at whether the watch goes on: so late a watch that broke is unknown.
_TURN = 1.0


class PodWatch:
    """Follows the pods of a node; what it knows of one is known until the pod is gone.

    Args:
        server: Where they are.
        node: Their node's name.
        outbox: Where reports and the state of this source go.
        clock: Monotonic instants.
    """

    def __init__(self, server: ApiServer, node: str, outbox: Outbox, clock: Clock) -> None:
        self._outbox = outbox
        self._clock = clock
        # This machine's may be minutes off, and a pod has seconds.
        self._cluster_clock = ClusterClock(clock)
        server.on_date = self._cluster_clock.observe
        self._cache: Cache[Pod] = Cache(self._changed)
        collection = ResourceClient(server, PODS, read_pod, Selection(fields=f"spec.nodeName={node}"))
        # From the API server's memory: thousands of agents that start at once would have etcd read everything.
        self._reflector = Reflector(collection, self._cache, clock, cached=True)
        self._reported: dict[str, NoticeReport] = {}
        self._waiting = set[ObjectKey]()
        self._last_good: float | None = None
        self._overflow = Fault(f"outbox for source {reclaim.SOURCE}", clock)
        self.watchdog = Watchdog(clock)
        self._note()

    async def follow(self) -> None:
        """Root task: follows the pods for ever."""
        await self._reflector.run()

    async def run(self) -> None:
        """Root task: says every second whether the pods are followed."""
        while True:
            self.watchdog.feed(_TURN)
            self.once()
            await asyncio.sleep(_TURN)

    def once(self) -> None:
        """One look at the watch, and another try for what found no room."""
        self._note()
        for key in [*self._waiting]:
            self._weigh(self._cache.objects[key])

    def _note(self) -> None:
        trouble = self._reflector.trouble
        if trouble is None:
            self._last_good = self._clock.monotonic()
        # That the pods are seen says nothing about the node, and neither does a notice on one of them.
        state = SourceState.UNKNOWN if trouble else SourceState.CLEAR
        self._outbox.set_status(SourceStatus(reclaim.SOURCE, state, self._last_good, trouble or "", SubjectKind.POD))

    def _changed(self, before: Pod | None, after: Pod | None) -> None:
        if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
            self._gone(before)
        if after is not None:
            self._weigh(after)

    def _weigh(self, pod: Pod) -> None:
        last = self._reported.get(pod.metadata.uid)
        new = reclaim.report(last, pod, reclaim.classify(pod), self._clock.monotonic(), self._cluster_clock.now())
        self._waiting.discard(pod.metadata.key)
        if new is not None:
            self._put(pod, new)

    def _put(self, pod: Pod, new: NoticeReport) -> None:
        try:
            self._outbox.put(new)
        except OutboxFull as full:
            self._overflow.failed(str(full))
            self._waiting.add(pod.metadata.key)
            return
        self._overflow.recovered()
        self._reported[pod.metadata.uid] = new
        structlog.get_logger().info(
            "pod.noticed",
            notice=new.id,
            pod=new.subject.name,
            announcement=new.announcement.name.lower(),
            message=new.message,
        )

    def _gone(self, pod: Pod) -> None:
        """Its uid never comes back: what was said of it stays so, and need not be said again."""
        self._waiting.discard(pod.metadata.key)
        last = self._reported.pop(pod.metadata.uid, None)
        if last is not None:
            self._outbox.finish(last.id)
