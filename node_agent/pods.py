"""Watches the opted-in pods of this node through the API server and reports reclaims of them.

`servicekit.spot` has the rule that recognizes a reclaim, the same for agents and supervisors.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from node_agent import notices
from node_agent.outbox import NoticeOutbox, OutboxFull
from node_agent.watchdog import Watchdog
from servicekit import spot
from servicekit.bulkhead import Bulkhead
from servicekit.faults import Fault
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from servicekit.spot import DISRUPTED, EXPIRED, PodCondition, PodReclaim, PodState, Withdrawn, ended_at_of, grace_of

PODS = Resource(group="", version="v1", kind="Pod", plural="pods", namespaced=True)
KUBERNETES = notices.SourceName("kubernetes")

# Seconds between two checks of the watch: a watch that broke shows as unknown this late.
_CHECK_SECONDS = 1.0
# Characters of a text for people that the wire carries.
_MAX_TEXT = 512
_OPTED_IN = "true"
_NOT_DECODED = PodState()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedPod:
    """A pod of this node: only the fields by which a reclaim differs from every other end.

    A node has up to 250 pods, whose manifests are some megabytes; of those that are not opted in only the name is kept.

    Attributes:
        opted_in: Whether an annotation asks for supervision.
        state: Decoded only for opted-in pods.
    """

    metadata: Metadata
    opted_in: bool
    state: PodState = _NOT_DECODED


class _PodPart(msgspec.Struct, frozen=True, rename="camel"):
    """The base class of the decoded parts of a pod."""


class _OptInAnnotations(_PodPart, frozen=True):
    managed: str = msgspec.field(default="", name="job-supervisor.kube-ai.io/managed-by-job-supervisor")
    spot: str = msgspec.field(default="", name="job-supervisor.kube-ai.io/spot-instance")


class _WatchedMetadata(Metadata, frozen=True, rename="camel"):
    annotations: _OptInAnnotations | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: float | None = None


class _WatchedSpec(_PodPart, frozen=True):
    termination_grace_period_seconds: float | None = None


class _WatchedCondition(_PodPart, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class _WatchedContainerEnd(_PodPart, frozen=True):
    finished_at: datetime | None = None


class _WatchedContainerState(_PodPart, frozen=True):
    terminated: _WatchedContainerEnd | None = None


class _WatchedContainer(_PodPart, frozen=True):
    state: _WatchedContainerState = _WatchedContainerState()


class _WatchedStatus(_PodPart, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[_WatchedCondition, ...] | None = ()
    container_statuses: tuple[_WatchedContainer, ...] | None = ()


class _PodManifest(msgspec.Struct, frozen=True):
    metadata: _WatchedMetadata
    spec: _WatchedSpec = _WatchedSpec()
    status: _WatchedStatus = _WatchedStatus()


_DECODER = msgspec.json.Decoder(_PodManifest)


def read_pod(data: bytes | msgspec.Raw) -> WatchedPod:
    """Decodes a pod.

    Raises:
        msgspec.MsgspecError: The JSON is not a pod.
    """
    read = _DECODER.decode(data)
    found, status = read.metadata, read.status
    metadata = Metadata(
        name=found.name, uid=found.uid, resource_version=found.resource_version, namespace=found.namespace
    )
    annotations = found.annotations or _OptInAnnotations()
    if _OPTED_IN not in (annotations.managed, annotations.spot):
        return WatchedPod(metadata=metadata, opted_in=False)
    ended = [each.state.terminated for each in status.container_statuses or ()]
    conditions = [each for each in status.conditions or () if each.type in (DISRUPTED, EXPIRED)]
    state = PodState(
        succeeded=status.phase == "Succeeded",
        failed=status.phase == "Failed",
        reason=status.reason,
        message=status.message[:_MAX_TEXT],
        conditions=tuple(
            PodCondition(each.type, each.status, each.reason, each.message[:_MAX_TEXT], each.last_transition_time)
            for each in conditions
        ),
        grace=grace_of(found.deletion_grace_period_seconds, read.spec.termination_grace_period_seconds),
        deleted_at=found.deletion_timestamp,
        ended_at=ended_at_of([None if each is None else each.finished_at for each in ended]),
    )
    return WatchedPod(metadata=metadata, opted_in=True, state=state)


def classify(pod: WatchedPod) -> PodReclaim | Withdrawn | None:
    """Classifies an opted-in pod by the rule of `servicekit.spot`; None for every other pod."""
    return spot.classify(pod.state) if pod.opted_in else None


def report(
    last: notices.NoticeReport | None, pod: WatchedPod, reclaim: PodReclaim | Withdrawn | None, now: float, wall: float
) -> notices.NoticeReport | None:
    """Makes a report if the supervisor does not know the present state yet. Pure.

    Args:
        last: The last report about this pod in this agent's life; None before the first.
        pod: The pod.
        reclaim: Its classification.
        now: The monotonic instant of the classification.
        wall: The same instant in Unix seconds of the API server's clock.
    """
    if reclaim is None:
        return None
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    subject = notices.NoticeSubject(notices.NoticeSubjectKind.POD, name, pod.metadata.uid)
    revision = last.revision + 1 if last else 1
    match reclaim:
        case PodReclaim(message, announced, lead):
            deadline = None if announced is None else now + min(announced.timestamp() - wall, lead)
            new = notices.NoticeReport(
                KUBERNETES, subject, revision, notices.AnnouncementState.ACTIVE, deadline, announced, message
            )
        case Withdrawn():
            # Also where this agent announced nothing: an earlier agent of this node may have.
            new = notices.NoticeReport(KUBERNETES, subject, revision, notices.AnnouncementState.WITHDRAWN)
    if last and (last.announcement, last.announced, last.message) == (new.announcement, new.announced, new.message):
        return None
    return new


class PodWatch:
    """Follows the pods of a node. A notice about a pod stays until the pod is gone or the reclaim is withdrawn.

    Attributes:
        reflector: Its `run` is a root task, which keeps the cache of pods in step.
    """

    def __init__(
        self, server: ApiServer, node: str, outbox: NoticeOutbox, cluster_clock: ClusterClock, bulkhead: Bulkhead
    ) -> None:
        self._outbox = outbox
        # This machine's clock may be minutes off, and a pod has seconds.
        self._cluster_clock = cluster_clock
        self._clock = clock = cluster_clock.own
        self._cache: Cache[WatchedPod] = Cache(PODS.plural, self._changed, bulkhead)
        collection = ResourceClient(server, PODS, read_pod, Selection(fields=f"spec.nodeName={node}"))
        # Lists come from the API server's memory: thousands of agents that start at once would make etcd read all pods.
        self.reflector = Reflector(collection, self._cache, clock, cached=True)
        self._bulkhead = bulkhead
        self._reported: dict[str, notices.NoticeReport] = {}
        self._waiting = set[ObjectKey]()
        self._failing = set[ObjectKey]()
        self._last_good: float | None = None
        self._overflow = Fault(f"outbox for source {KUBERNETES}", clock)
        self.watchdog = Watchdog(clock)
        self._set_status()

    async def run(self) -> None:
        """Root task: every second, reports whether the watch works, and tries failed reports again.

        These are the reports that raised, and those for which the outbox had no room.
        """
        while True:
            self.watchdog.feed(_CHECK_SECONDS)
            with self._bulkhead.guard("pods"):
                for key in [*self._waiting, *self._failing]:
                    self._try_to_report(self._cache.objects[key])
                self._set_status()
            await asyncio.sleep(_CHECK_SECONDS)

    def is_idle(self) -> bool:
        """Returns whether no opted-in pod runs here; False also while that is unknown."""
        states = [pod.state for pod in self._cache.objects.values() if pod.opted_in]
        return self.reflector.trouble is None and all(state.succeeded or state.failed for state in states)

    def _set_status(self) -> None:
        trouble = self.reflector.trouble
        if trouble is None and self._failing:
            key = min(self._failing, key=str)
            trouble = f"internal error with {len(self._failing)} pods, such as {key}; see the agent's log"
        if trouble is None:
            self._last_good = self._clock.monotonic()
        # The state is about pods: it says nothing about the node, and a notice on a pod does not change it.
        state = notices.PollResult.UNKNOWN if trouble else notices.PollResult.CLEAR
        status = notices.ReportedSource(
            KUBERNETES, state, self._last_good, trouble or "", notices.NoticeSubjectKind.POD
        )
        self._outbox.set_status(status)

    def _changed(self, before: WatchedPod | None, after: WatchedPod | None) -> None:
        if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
            # A uid never comes back, so there is nothing more to report about this pod.
            self._waiting.discard(before.metadata.key)
            self._failing.discard(before.metadata.key)
            last = self._reported.pop(before.metadata.uid, None)
            if last is not None:
                self._outbox.finish(last.id)
        if after is not None:
            self._try_to_report(after)

    def _try_to_report(self, pod: WatchedPod) -> None:
        """Reports a pod. After an unexpected exception it tries this pod again, and the others go on."""
        key = pod.metadata.key
        with self._bulkhead.guard("pods", key) as attempt:
            last = self._reported.get(pod.metadata.uid)
            new = report(last, pod, classify(pod), self._clock.monotonic(), self._cluster_clock.now())
            self._waiting.discard(key)
            if new is not None:
                self._put(pod, new)
        if attempt.failed:
            self._failing.add(key)
        else:
            self._failing.discard(key)

    def _put(self, pod: WatchedPod, new: notices.NoticeReport) -> None:
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
