"""Makes Events by the API events.k8s.io/v1, and counts up those that are there."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.events import REPORTER
from supervisor.observability.events.event import AggregationKey, EventDraft, ObjectReference
from supervisor.observability.events.queue import PendingEvent, SendResult

_EVENTS = Resource(group="events.k8s.io", version="v1", kind="Event", plural="events", namespaced=True)
_NOWHERE = "default"
"""Where Events about objects without a namespace are, as the API server wants it."""

_MAX_NOTE = 1024
"""Bytes, by the API."""

_MAX_NAME, _MAX_INSTANCE = 200, 128


class Event(msgspec.Struct, frozen=True):
    """One Event as it is read: what nobody here asks for is left out."""

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
        most_remembered: So many that may be counted up.
    """

    def __init__(self, server: ApiServer, instance: str, aggregation_seconds: float, max_remembered: int) -> None:
        self._events = ResourceClient(server, _EVENTS, lambda data: msgspec.json.decode(data, type=Event))
        self._instance = instance[:_MAX_INSTANCE]
        self._again_seconds = aggregation_seconds
        self._most_remembered = max_remembered
        self._sent: OrderedDict[AggregationKey, _Sent] = OrderedDict()

    async def send(self, due: PendingEvent) -> SendResult:
        """Makes an Event, or counts one up.

        Raises:
            NotThereError: The namespace is gone.
            ApiUnavailableError: It may be sent later, as often as need be: its name says what it says.
            ApiError: It cannot be sent.
        """
        draft = due.draft
        sent = self._sent.get(draft.aggregation_key)
        if sent is not None and draft.at - sent.at <= self._again_seconds:
            times = sent.times + due.times
            try:
                event = await self._events.merge(sent.event, {"series": _series(times, draft.at)})
            except (NotFoundError, ConflictError):
                pass  # Events are forgotten after an hour, or by whoever deletes them.
            else:
                self._remember(draft, _Sent(event, times, draft.at))
                return SendResult.AGGREGATED
        try:
            event = await self._make(due)
        except ConflictError:
            return SendResult.SENT  # It was, and the answer got lost.
        self._remember(draft, _Sent(event, due.times, draft.at))
        return SendResult.SENT

    async def _make(self, due: PendingEvent) -> Event:
        content = _content(due.draft, self._instance)
        if due.times > 1:
            content["series"] = _series(due.times, due.draft.at)
        return await self._events.make(_key(due.draft), content)

    def _remember(self, draft: EventDraft, sent: _Sent) -> None:
        self._sent[draft.aggregation_key] = sent
        self._sent.move_to_end(draft.aggregation_key)
        if len(self._sent) > self._most_remembered:
            self._sent.popitem(last=False)


def _key(draft: EventDraft) -> ObjectKey:
    """Named by what it says: where an answer got lost, the same Event is there already.

    The instant comes first, as kubectl describe shows Events of this API in the order of their names.
    """
    name = draft.regarding.name[:_MAX_NAME].rstrip("-.")
    said = hashlib.sha256(repr(draft.aggregation_key).encode()).hexdigest()[:8]
    return ObjectKey(draft.regarding.namespace or _NOWHERE, f"{name}.{int(draft.at * 1e6):x}-{said}")


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
    """With microseconds, without which the API takes none of them."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
