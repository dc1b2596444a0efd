"""Watches the pods of this node through the API server and reports reclaims of them."""

import asyncio

import structlog

from node_agent import reclaim
from node_agent.notices import NoticeReport, SourceState, SourceStatus, SubjectKind
from node_agent.outbox import Outbox, OutboxFull
from node_agent.pod import PODS, Pod, read_pod
from node_agent.watchdog import Watchdog
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient, Selection
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer

# Seconds between two checks of the watch: a watch that broke shows as unknown this late.
_CHECK_SECONDS = 1.0


class PodWatch:
    """Follows the pods of a node. A notice about a pod stays until the pod is gone or the reclaim is withdrawn."""

    def __init__(self, server: ApiServer, node: str, outbox: Outbox, clock: Clock, bulkhead: Bulkhead) -> None:
        self._outbox = outbox
        self._clock = clock
        # This machine's clock may be minutes off, and a pod has seconds.
        self._cluster_clock = ClusterClock(clock)
        server.on_date = self._cluster_clock.observe
        self._cache: Cache[Pod] = Cache(PODS.plural, self._changed, bulkhead)
        collection = ResourceClient(server, PODS, read_pod, Selection(fields=f"spec.nodeName={node}"))
        # Lists come from the API server's memory: thousands of agents that start at once would make etcd read all pods.
        self._reflector = Reflector(collection, self._cache, clock, cached=True)
        self._bulkhead = bulkhead
        self._reported: dict[str, NoticeReport] = {}
        self._waiting = set[ObjectKey]()
        self._failing = set[ObjectKey]()
        self._last_good: float | None = None
        self._overflow = Fault(f"outbox for source {reclaim.SOURCE}", clock)
        self.watchdog = Watchdog(clock)
        self._set_status()

    async def follow(self) -> None:
        """Root task: keeps the cache of pods in step."""
        await self._reflector.run()

    async def run(self) -> None:
        """Root task: reports every second whether the pods are followed."""
        while True:
            self.watchdog.feed(_CHECK_SECONDS)
            with self._bulkhead.guard("pods"):
                self.once()
            await asyncio.sleep(_CHECK_SECONDS)

    def once(self) -> None:
        """Updates the source's state, and tries again the reports that failed or for which the outbox had no room."""
        for key in [*self._waiting, *self._failing]:
            self._try_to_report(self._cache.objects[key])
        self._set_status()

    @property
    def idle(self) -> bool:
        """Whether no opted-in pod runs here; False also while that is unknown."""
        pods = self._cache.objects.values()
        return self._reflector.trouble is None and all(pod.ended for pod in pods if pod.opted_in)

    def _set_status(self) -> None:
        trouble = self._reflector.trouble
        if trouble is None and self._failing:
            key = min(self._failing, key=str)
            trouble = f"internal error with {len(self._failing)} pods, such as {key}; see the agent's log"
        if trouble is None:
            self._last_good = self._clock.monotonic()
        # The state is about pods: it says nothing about the node, and a notice on a pod does not change it.
        state = SourceState.UNKNOWN if trouble else SourceState.CLEAR
        self._outbox.set_status(SourceStatus(reclaim.SOURCE, state, self._last_good, trouble or "", SubjectKind.POD))

    def _changed(self, before: Pod | None, after: Pod | None) -> None:
        if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
            self._gone(before)
        if after is not None:
            self._try_to_report(after)

    def _try_to_report(self, pod: Pod) -> None:
        """Reports a pod; what nobody foresaw stays with it, and is tried again."""
        key = pod.metadata.key
        with self._bulkhead.guard("pods", key) as attempt:
            self._report(pod)
        if attempt.failed:
            self._failing.add(key)
        else:
            self._failing.discard(key)

    def _report(self, pod: Pod) -> None:
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
        """Ends the pod's notice. A uid never comes back, so there is nothing more to report."""
        self._waiting.discard(pod.metadata.key)
        self._failing.discard(pod.metadata.key)
        last = self._reported.pop(pod.metadata.uid, None)
        if last is not None:
            self._outbox.finish(last.id)
