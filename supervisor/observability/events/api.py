"""Sends Events through the API events.k8s.io/v1, and finds the objects that they are about."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from servicekit.bounds import instant_of
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.events import REPORTER
from supervisor.cluster.objects import PODS, Pod
from supervisor.cluster.requests import EVENTS, NODE_EVENTS_NAMESPACE
from supervisor.cluster.view import ClusterView
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host, JobName, namespace
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice, SubjectKind
from supervisor.jobs.registry import RESOURCES, OwnerOf, job_of
from supervisor.observability.events.rules import AggregationKey, EventDraft, ObjectReference
from supervisor.store.codec import JOBS, NOTICES, owners
from supervisor.store.kubernetes import KubernetesStore

_MAX_NOTE = 1024
"""Bytes, a limit of the API."""

_MAX_NAME, _MAX_INSTANCE = 200, 128


class SendResult(StrEnum):
    """The outcome of a draft.

    Attributes:
        SENT: A new Event was created.
        AGGREGATED: It incremented the count of an existing Event, or a later draft replaced it.
        DROPPED: It was never sent, because the queue was full or it had waited too long.
        FAILED: The API server refused it.
    """

    SENT = "sent"
    AGGREGATED = "aggregated"
    DROPPED = "dropped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """A draft that waits to be sent, and how often it was repeated."""

    draft: EventDraft
    times: int = 1


class RecordedEvent(msgspec.Struct, frozen=True):
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class _Sent:
    event: RecordedEvent
    times: int
    at: float


class EventSender:
    """Creates Events, and increments the count of repeated ones.

    Args:
        server: The API server.
        instance: The name of the supervisor that reports the Events, such as that of its pod.
        aggregation_seconds: A repetition within this time increments the count of its Event.
        max_remembered: The number of Events whose repetitions are recognized.
    """

    def __init__(self, server: ApiServer, instance: str, aggregation_seconds: float, max_remembered: int) -> None:
        self._events = ResourceClient(server, EVENTS, lambda data: msgspec.json.decode(data, type=RecordedEvent))
        self._instance = instance[:_MAX_INSTANCE]
        self._aggregation_seconds = aggregation_seconds
        self._max_remembered = max_remembered
        self._sent: OrderedDict[AggregationKey, _Sent] = OrderedDict()

    async def send(self, pending: PendingEvent) -> SendResult:
        """Creates an Event, or increments the count of an existing one.

        Raises:
            NotFoundError: The namespace is gone.
            ApiUnavailableError: Try again later, as often as needed: the name of an Event identifies its content.
            ApiError: The API server refuses the Event.
        """
        draft = pending.draft
        sent = self._sent.get(draft.aggregation_key)
        event = None
        if sent is not None and draft.at - sent.at <= self._aggregation_seconds:
            times = sent.times + pending.times
            series = {"count": times, "lastObservedTime": _instant(draft.at)}
            # The API server deletes Events after an hour, and users may delete them earlier.
            with suppress(NotFoundError, ConflictError):
                event = await self._events.merge(sent.event, {"series": series})
        result = SendResult.SENT if event is None else SendResult.AGGREGATED
        if event is None:
            times, content = pending.times, _content(draft, self._instance)
            if times > 1:
                content["series"] = {"count": times, "lastObservedTime": _instant(draft.at)}
            try:
                event = await self._events.create(_key(draft), content)
            except ConflictError:
                return result  # It was sent, and the answer got lost.
        self._sent[draft.aggregation_key] = _Sent(event, times, draft.at)
        self._sent.move_to_end(draft.aggregation_key)
        if len(self._sent) > self._max_remembered:
            self._sent.popitem(last=False)
        return result


def _key(draft: EventDraft) -> ObjectKey:
    """Derives an Event's name from its content, so that a lost answer does not lead to a second Event.

    The instant comes first, because kubectl describe orders Events of this API by name.
    """
    name = draft.regarding.name[:_MAX_NAME].rstrip("-.")
    content = hashlib.sha256(repr(draft.aggregation_key).encode()).hexdigest()[:8]
    return ObjectKey(draft.regarding.namespace or NODE_EVENTS_NAMESPACE, f"{name}.{int(draft.at * 1e6):x}-{content}")


def _content(draft: EventDraft, instance: str) -> dict[str, object]:
    related = {} if draft.related is None else {"related": _reference(draft.related)}
    return {
        "eventTime": _instant(draft.at),
        "reportingController": REPORTER,
        "reportingInstance": instance,
        "reason": draft.reason.name,
        "action": draft.reason.action,
        "type": draft.reason.type,
        "note": draft.note.encode()[:_MAX_NOTE].decode(errors="ignore"),
        "regarding": _reference(draft.regarding),
        **related,
    }


def _reference(regarding: ObjectReference) -> dict[str, str]:
    namespace = {"namespace": regarding.namespace} if regarding.namespace else {}
    return {
        "apiVersion": regarding.api_version,
        "kind": regarding.kind,
        "name": regarding.name,
        "uid": regarding.uid,
        **namespace,
    }


def _instant(at: float) -> str:
    """Formats an instant with microseconds, because the API accepts no other format."""
    return instant_of(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class ClusterReferenceResolver:
    """Implements `ReferenceResolver` with the caches of the supervisor."""

    store: KubernetesStore
    view: ClusterView
    placements: Callable[[JobName], Mapping[Host, Placement] | None]
    owner_of: OwnerOf
    is_released: Callable[[SupervisedJob], bool]

    def notice(self, notice: ReclaimNotice) -> tuple[ObjectReference | None, Sequence[ObjectReference]]:
        """Returns the ReclaimNotice and its pods: the pod of the notice, or the live pods of its node."""
        if notice.subject.kind is SubjectKind.NODE:
            pods: Iterable[Pod] = self.view.bound(notice.subject.name).values()
        else:
            found = self.view.pod(notice.subject.uid)
            pods = () if found is None else (found,)
        jobs, affected = self.store.snapshot().jobs, list[ObjectReference]()
        for pod in pods:
            reference = None if pod.over else job_of(pod, self.owner_of)
            job = None if reference is None else jobs.get(reference.name)
            if reference is not None and job is not None and job.uid == reference.uid:
                affected.append(_about(PODS, pod.metadata))
        metadata = self.store.notice_object(notice.id)
        return None if metadata is None else _about(NOTICES, metadata), affected

    def job(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        metadata = self.store.job_object(job.name)
        if metadata is None:
            return ()
        return (_about(JOBS, metadata), *_owning(job, metadata.namespace))

    def released(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        return _owning(job, namespace(job.name)) if self.is_released(job) else ()

    def pods(self, job: SupervisedJob, hosts: Iterable[Host]) -> Iterator[ObjectReference]:
        """Returns the pods of these hosts. Machines in a launcher's list are not pods."""
        placed = self.placements(job.name) or {}
        for host in hosts:
            pod = self.view.pod(placed[host].pod) if host in placed else None
            if pod is not None:
                yield _about(PODS, pod.metadata)


def _owning(job: SupervisedJob, namespace: str) -> Sequence[ObjectReference]:
    """Returns the object of the job's kind."""
    return [
        ObjectReference(each["apiVersion"], each["kind"], namespace, each["name"], each["uid"])
        for each in owners(job, RESOURCES)
    ]


def _about(kind: Resource, metadata: Metadata) -> ObjectReference:
    return ObjectReference(kind.api_version, kind.kind, metadata.namespace, metadata.name, metadata.uid)
