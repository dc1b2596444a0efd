"""Creates Events by the API events.k8s.io/v1, and increments the count of repeated ones."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from servicekit.bounds import instant_of
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.events import REPORTER
from supervisor.observability.events.event import AggregationKey, EventDraft, ObjectReference
from supervisor.observability.events.queue import PendingEvent, SendResult

_EVENTS = Resource(group="events.k8s.io", version="v1", kind="Event", plural="events", namespaced=True)
_CLUSTER_SCOPED_NAMESPACE = "default"
"""The API server wants Events about cluster-scoped objects there."""

_MAX_NOTE = 1024
"""Bytes, a limit of the API."""

_MAX_NAME, _MAX_INSTANCE = 200, 128


class Event(msgspec.Struct, frozen=True):
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class _Sent:
    event: Event
    times: int
    at: float


class Events:
    """Sends.

    Args:
        server: Whom to.
        instance: Which supervisor says so, such as its pod's name.
        again_seconds: For so long after it was said last, what is said again is counted up.
        max_remembered: How many Events are remembered for that.
    """

    def __init__(self, server: ApiServer, instance: str, aggregation_seconds: float, max_remembered: int) -> None:
        self._events = ResourceClient(server, _EVENTS, lambda data: msgspec.json.decode(data, type=Event))
        self._instance = instance[:_MAX_INSTANCE]
        self._again_seconds = aggregation_seconds
        self._most_remembered = max_remembered
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
        if sent is not None and draft.at - sent.at <= self._again_seconds:
            times = sent.times + pending.times
            try:
                event = await self._events.merge(sent.event, {"series": _series(times, draft.at)})
            except (NotFoundError, ConflictError):
                pass  # The API server deletes Events after an hour, and users may delete them earlier.
            else:
                self._remember(draft, _Sent(event, times, draft.at))
                return SendResult.AGGREGATED
        try:
            event = await self._make(pending)
        except ConflictError:
            return SendResult.SENT  # It was, and the answer got lost.
        self._remember(draft, _Sent(event, pending.times, draft.at))
        return SendResult.SENT

    async def _make(self, pending: PendingEvent) -> Event:
        content = _content(pending.draft, self._instance)
        if pending.times > 1:
            content["series"] = _series(pending.times, pending.draft.at)
        return await self._events.create(_key(pending.draft), content)

    def _remember(self, draft: EventDraft, sent: _Sent) -> None:
        self._sent[draft.aggregation_key] = sent
        self._sent.move_to_end(draft.aggregation_key)
        if len(self._sent) > self._most_remembered:
            self._sent.popitem(last=False)


def _key(draft: EventDraft) -> ObjectKey:
    """Derives the name from the content, so that an Event is not created twice when an answer is lost.

    The instant comes first, because kubectl describe orders Events of this API by name.
    """
    name = draft.regarding.name[:_MAX_NAME].rstrip("-.")
    said = hashlib.sha256(repr(draft.aggregation_key).encode()).hexdigest()[:8]
    return ObjectKey(draft.regarding.namespace or _CLUSTER_SCOPED_NAMESPACE, f"{name}.{int(draft.at * 1e6):x}-{said}")


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


def _series(times: int, at: float) -> dict[str, object]:
    return {"count": times, "lastObservedTime": _instant(at)}


def _instant(at: float) -> str:
    """With microseconds: the API accepts no other format."""
    return instant_of(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
