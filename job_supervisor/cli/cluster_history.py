"""What the supervisor has written into a cluster's Events, and which jobs have which labels."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from job_supervisor.cli.history import Entry
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.errors import NotFoundError, RefusedError
from servicekit.kubernetes.objects import Metadata
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.events import REPORTER
from supervisor.domain.ids import JobName
from supervisor.store.codec import JOBS

_EVENTS = Resource(group="events.k8s.io", version="v1", kind="Event", plural="events", namespaced=True)
_CORE_EVENTS = Resource(group="", version="v1", kind="Event", plural="events", namespaced=True)


class _Reference(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    count: int = 1
    last_observed_time: datetime | None = None


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    """An Event as either API has it: both store the same objects under two sets of names."""

    metadata: Metadata
    event_time: datetime | None = None
    reporting_controller: str = ""
    reporting_component: str = ""
    regarding: _Reference = _Reference()
    involved_object: _Reference = _Reference()
    reason: str = ""
    note: str = ""
    message: str = ""
    series: _Series | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata


async def events(server: ApiServer, namespace: str) -> list[Entry]:
    """The decisions that the supervisor's Events tell.

    Raises:
        RefusedError: The user may not list Events.
        ApiError: See `ResourceClient.list`.
    """
    try:
        found = await _list(server, _EVENTS, namespace)
    except RefusedError:  # The view role of Kubernetes permits the core Events alone.
        found = await _list(server, _CORE_EVENTS, namespace)
    return [entry for each in found if (entry := _entry(each)) is not None]


async def _list(server: ApiServer, resource: Resource, namespace: str) -> Sequence[_Event]:
    chosen = Selection(namespace=namespace)
    client = ResourceClient(server, resource, lambda data: msgspec.json.decode(data, type=_Event), chosen)
    return (await client.list()).objects


def _entry(event: _Event) -> Entry | None:
    """A decision: all other Events of the supervisor refer to its job's, or repeat a notice."""
    about = event.regarding if event.regarding.name else event.involved_object
    ours = REPORTER in (event.reporting_controller, event.reporting_component)
    if not ours or event.event_time is None or about.kind != JOBS.kind:
        return None
    name = JobName(f"{about.namespace}/{about.name}")
    return Entry(
        at=event.event_time.timestamp(),
        subject=f"job/{name}",
        what=event.reason,
        text=f"{event.note or event.message}{_repeated(event.series)}",
        jobs=[name],
    )


def _repeated(series: _Series | None) -> str:
    if series is None or series.last_observed_time is None:
        return ""
    return f" ({series.count} times, last at {series.last_observed_time:%H:%M:%S} UTC)"


async def labelled(server: ApiServer, namespace: str, selector: str) -> frozenset[JobName]:
    """The jobs of all kinds whose objects have these labels, including jobs that are not supervised.

    Raises:
        ApiError: See `ResourceClient.list`.
    """
    # Imported here: the kinds' code is not needed for anything else.
    from supervisor.jobs.registry import resources  # noqa: PLC0415

    found: set[JobName] = set()
    chosen = Selection(namespace=namespace, labels=selector)
    for name, resource in resources().items():
        client = ResourceClient(server, resource, lambda data: msgspec.json.decode(data, type=_Object), chosen)
        try:
            objects = (await client.list()).objects
        except NotFoundError:  # The cluster has no such operator.
            continue
        found.update(JobName(f"{each.metadata.namespace}/{name}.{each.metadata.name}") for each in objects)
    return frozenset(found)
