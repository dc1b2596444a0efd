"""Caches the cluster's Events whose reasons announce a reclaim.

There is one watch for each reason: a field selector takes one value, and a cluster has thousands of other Events an
hour.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import Node, Pod
from supervisor.cluster.view import Hook, call_hooks
from supervisor.domain.notice import LEAD_ANNOTATION

EVENTS = Resource(group="", version="v1", kind="Event", plural="events", namespaced=True)

REPORTER = "job-supervisor.kube-ai.io/supervisor"
"""The reporter of the supervisors' own Events. They describe notices, so they must not become notices themselves."""

_POD = "Pod"
_NODE = "Node"
_NODE_EVENT_NAMESPACES = frozenset({"default", "kube-system"})
"""The namespaces of Events about nodes. In other namespaces tenants may write Events with any name and uid."""


class Involved(msgspec.Struct, frozen=True):
    """The object that an Event is about."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class _Annotations(msgspec.Struct, frozen=True):
    """The annotations that the supervisor reads. Others are not decoded, because they may be long."""

    simulated_lead: str = msgspec.field(default="", name=LEAD_ANNOTATION)


class EventMetadata(Metadata, frozen=True, rename="camel"):
    annotations: _Annotations = _Annotations()


class _ClusterEventSeries(msgspec.Struct, frozen=True, rename="camel"):
    last_observed_time: datetime | None = None


class ClusterEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An Event; its reporter changes it when it repeats."""

    metadata: EventMetadata
    involved_object: Involved
    reason: str = ""
    message: str = ""
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: _ClusterEventSeries | None = None
    reporting_component: str = ""

    @property
    def at(self) -> datetime | None:
        """The instant of the last report, by the reporter's clock.

        Which field has it depends on the reporter's library.
        """
        repeated = None if self.series is None else self.series.last_observed_time
        return (
            repeated
            or self.last_timestamp
            or self.event_time
            or self.first_timestamp
            or self.metadata.creation_timestamp
        )


read_event: Callable[[bytes | msgspec.Raw], ClusterEvent] = msgspec.json.Decoder(ClusterEvent).decode
"""Decodes an Event from the API server's JSON. It raises `msgspec.MsgspecError` if it is not an Event."""


class ClusterEvents:
    """The Events that announce a reclaim. The caller runs `reflectors`.

    Events that we may not list are missing, and listed again later.

    Args:
        server: The API server.
        leads: Seconds between an Event and the end that it announces, by the reasons that are followed.
        clock: The clock of the reflectors.
        bulkhead: Confines an unforeseen error to its Event.

    Attributes:
        changed: Hooks that are called with each change of an Event.
        reflectors: By reason.
    """

    def __init__(self, server: ApiServer, leads: Mapping[str, float], clock: Clock, bulkhead: Bulkhead) -> None:
        self.changed: list[Hook[ClusterEvent]] = []
        self._bulkhead = bulkhead
        self._leads = leads
        self._by_subject: dict[str, dict[ObjectKey, ClusterEvent]] = {}
        self.reflectors: dict[str, Reflector[Any]] = {
            reason: Reflector(
                ResourceClient(server, EVENTS, read_event, Selection(fields=f"reason={reason}")),
                Cache(EVENTS.plural, self._moved, bulkhead),
                clock,
            )
            for reason in leads
        }

    def about_pod(self, pod: Pod) -> Iterator[tuple[ClusterEvent, float]]:
        """Yields the Events in a pod's namespace with its name and uid, each with its lead in seconds."""
        for event in self._by_subject.get(pod.metadata.uid, {}).values():
            key = ObjectKey(event.metadata.namespace, event.involved_object.name)
            if event.involved_object.kind == _POD and key == pod.key:
                yield event, self._leads[event.reason]

    def about_node(self, node: Node) -> Iterator[tuple[ClusterEvent, float]]:
        """Yields the Events about a node, by uid or name.

        Kubelets and problem detectors write its name as uid, or no uid.
        """
        begun = node.metadata.creation_timestamp
        for key in (node.metadata.uid, node.metadata.name):
            for event in self._by_subject.get(key, {}).values():
                made, involved = event.metadata.creation_timestamp, event.involved_object
                if involved.kind != _NODE or event.metadata.namespace not in _NODE_EVENT_NAMESPACES:
                    continue
                # It may be about an earlier node of the same name.
                named = involved.uid != node.metadata.uid
                if not (named and made is not None and begun is not None and made < begun):
                    yield event, self._leads[event.reason]

    def _moved(self, before: ClusterEvent | None, after: ClusterEvent | None) -> None:
        if any(each is not None and each.reporting_component == REPORTER for each in (before, after)):
            return  # The reporter of an Event cannot change.
        for event in (before, after):
            if event is not None:
                subject = event.involved_object.uid or event.involved_object.name
                events = self._by_subject.setdefault(subject, {})
                if event is after:
                    events[event.metadata.key] = event
                else:
                    del events[event.metadata.key]
                if not events:
                    del self._by_subject[subject]
        call_hooks(self._bulkhead, self.changed, before, after)
