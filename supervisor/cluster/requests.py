"""Writes what people ask for to where a cluster keeps it: annotations of jobs and nodes, and Events of drills."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import RefusedError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.annotations import DRAIN, DRAIN_AT, DRAIN_CORDONED, STOP, SUSPEND
from supervisor.cluster.objects import NODES
from supervisor.domain.ids import JobName, bare_name, namespace
from supervisor.domain.job import RequestKind
from supervisor.domain.notice import EVENT_REASON, LEAD_ANNOTATION, explained

EVENTS = Resource(group="events.k8s.io", version="v1", kind="Event", plural="events", namespaced=True)
CORE_EVENTS = Resource(group="", version="v1", kind="Event", plural="events", namespaced=True)
"""Both APIs store the same objects. Supervisors may create the new ones, users of a namespace often the core ones."""

NODE_EVENTS_NAMESPACE = "default"
"""The API server accepts Events about nodes only there."""

_CORE_NAMES = {"regarding": "involvedObject", "note": "message", "reportingController": "reportingComponent"}
"""The names of fields in the core API of Events."""

_INSTANCE = "job-supervisor"
"""The instance that reports the Events of drills."""

_ANNOTATIONS = {RequestKind.SUSPEND: SUSPEND, RequestKind.STOP: STOP}


class _NamedObject(msgspec.Struct, frozen=True):
    metadata: Metadata


class _DrainableMetadata(Metadata, frozen=True, rename="camel"):
    annotations: Mapping[str, str] | None = None


class _DrainableSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False


class _DrainableNode(msgspec.Struct, frozen=True):
    metadata: _DrainableMetadata
    spec: _DrainableSpec = _DrainableSpec()


def _named_object(data: bytes | msgspec.Raw) -> _NamedObject:
    return msgspec.json.decode(data, type=_NamedObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillObject:
    """The object that a drill is about: a node, or a pod of a namespace."""

    kind: str
    name: str
    uid: str
    namespace: str = ""


class ClusterRequests:
    """Writes requests with the rights of `server`. Every method raises ApiError.

    Args:
        server: The API server.
        now: Unix seconds by the API server's clock.
        reporter: Who reports the Events of drills, a name with our domain.
    """

    def __init__(self, server: ApiServer, now: Callable[[], float], reporter: str) -> None:
        self._server = server
        self._now = now
        self._reporter = reporter
        self._nodes = ResourceClient(server, NODES, lambda data: msgspec.json.decode(data, type=_DrainableNode))

    async def steer(self, resource: Resource, job: JobName, kind: RequestKind | None, text: str) -> None:
        """Annotates the object of a job with who asks and why. None removes every request."""
        annotations: dict[str, str | None] = dict.fromkeys(_ANNOTATIONS.values())
        if kind is not None:
            annotations = {_ANNOTATIONS[kind]: text}
        client = ResourceClient(self._server, resource, _named_object)
        found = await client.get(ObjectKey(namespace(job), bare_name(job)))
        await client.merge(found, {}, metadata={"annotations": annotations})

    async def drain(self, node: str, lead: float, text: str) -> None:
        """Annotates and cordons a node; `text` says who asks and why."""
        until = datetime.fromtimestamp(self._now() + lead, UTC)
        found = await self._nodes.get(ObjectKey("", node))
        annotations = {DRAIN: text, DRAIN_AT: until.isoformat(timespec="seconds")}
        if not found.spec.unschedulable:
            annotations[DRAIN_CORDONED] = "true"
        await self._nodes.merge(found, {"spec": {"unschedulable": True}}, metadata={"annotations": annotations})

    async def undrain(self, node: str) -> None:
        """Removes the annotations of the drain, and the cordon if the drain set it."""
        found = await self._nodes.get(ObjectKey("", node))
        cordoned_here = DRAIN_CORDONED in (found.metadata.annotations or {})
        spec = {"spec": {"unschedulable": None}} if cordoned_here else {}
        annotations = dict.fromkeys((DRAIN, DRAIN_AT, DRAIN_CORDONED))
        await self._nodes.merge(found, spec, metadata={"annotations": annotations})

    async def node(self, name: str) -> DrillObject:
        """Returns a node as the object of a drill."""
        found = await self._nodes.get(ObjectKey("", name))
        return DrillObject(kind="Node", name=name, uid=found.metadata.uid)

    async def drill(self, target: DrillObject, lead: float, by: str) -> None:
        """Writes the Event that starts a drill, or ends it if the lead is 0."""
        space = target.namespace or NODE_EVENTS_NAMESPACE
        regarding = {"apiVersion": "v1", "kind": target.kind, "name": target.name, "uid": target.uid}
        if target.namespace:
            regarding["namespace"] = target.namespace
        key = ObjectKey(space, f"{target.name}.drill-{secrets.token_hex(5)}")
        annotations = {LEAD_ANNOTATION: f"{lead:g}"}
        content = {
            "regarding": regarding,
            "reason": EVENT_REASON,
            "note": explained(by) if lead else f"{by or 'Somebody'} has ended the drill early.",
            "type": "Normal",
            "action": "Simulate",
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": self._reporter,
            "reportingInstance": _INSTANCE,
        }
        try:
            await ResourceClient(self._server, EVENTS, _named_object).create(key, content, annotations=annotations)
        except RefusedError:
            renamed = {_CORE_NAMES.get(name, name): value for name, value in content.items()}
            core = ResourceClient(self._server, CORE_EVENTS, _named_object)
            await core.create(key, renamed, annotations=annotations)
