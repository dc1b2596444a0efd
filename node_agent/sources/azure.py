"""Source `azure`: reads the Scheduled Events of an Azure VM.

Every VM of a scale set gets the events of all of them, so the resources of an event must name this VM. An event that
is called off, or that is over, leaves the list.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Final

import msgspec
import structlog

from node_agent import metadata
from node_agent.notices import Answer, Clear, MachinePrice, NodeIdentity, Noticed, NoticeUrgency, SourceUnavailable
from servicekit.clock import Clock

_EVENTS = "scheduledevents?api-version=2020-07-01"
_ITEM = "instance/compute/{}?api-version=2021-02-01&format=text"
_VM_NAME = _ITEM.format("name")
_ENVIRONMENT = _ITEM.format("azEnvironment")
_IDENTITY = metadata.IdentityPaths(
    cloud="azure",
    uid=_ITEM.format("vmId"),
    region=_ITEM.format("location"),
    zone=_ITEM.format("zone"),
    instance_type=_ITEM.format("vmSize"),
    life_cycle=_ITEM.format("priority"),
    prices={"Spot": MachinePrice.SPOT, "Low": MachinePrice.SPOT, "Regular": MachinePrice.ON_DEMAND},
)
# The events of a whole scale set.
_MAX_BYTES = 256 * 1024
# Seconds that an acknowledgement may take of a poll.
_ACKNOWLEDGE_SECONDS = 0.3
_RFC1123 = re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
_MALFORMED = (msgspec.DecodeError, UnicodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class _EventEffect:
    """The effect of an event on the VM; `lead` is the shortest notice in seconds that Azure documents."""

    notice_class: NoticeUrgency
    lead: float | None
    message: str


_EFFECTS: Mapping[str, _EventEffect] = {
    "Preempt": _EventEffect(NoticeUrgency.SUDDEN, 30.0, "the spot VM will be evicted"),
    "Terminate": _EventEffect(NoticeUrgency.SCHEDULED, 300.0, "the VM will be deleted"),
    "Reboot": _EventEffect(NoticeUrgency.SCHEDULED, 900.0, "the VM will be rebooted"),
    "Redeploy": _EventEffect(NoticeUrgency.SCHEDULED, 600.0, "the VM will be moved to another host"),
    # It pauses for some seconds and loses nothing.
    "Freeze": _EventEffect(NoticeUrgency.HINT, None, "the VM will be paused for some seconds"),
}


class _ScheduledEvent(msgspec.Struct, frozen=True):
    EventId: str
    EventType: str
    EventStatus: str
    Resources: tuple[str, ...]
    NotBefore: str | None = None


class _ScheduledEvents(msgspec.Struct, frozen=True):
    DocumentIncarnation: int
    Events: tuple[_ScheduledEvent, ...]


_DECODER: Final = msgspec.json.Decoder(_ScheduledEvents)


class AzureSource(metadata.MetadataSource):
    """Asks the metadata service. Needs a running loop.

    The first request for events switches the service on, which may take minutes: until then the state is unknown.

    Args:
        base_url: Scheme and host of the service, with a path before `/metadata` where a proxy or simulator has one.
        clock: For the lead time where the service's own clock is not known.
        may_start: Whether an announced event may start now. Then it is acknowledged, and Azure waits no longer. None:
            events are not acknowledged.
    """

    def __init__(self, base_url: str, clock: Clock, may_start: Callable[[], bool] | None = None) -> None:
        http = metadata.MetadataHttp(
            base_url, clock, root="/metadata", headers={"Metadata": "true"}, max_bytes=_MAX_BYTES
        )
        super().__init__(http, partial(http.request, "GET"), _IDENTITY, clock)
        self._may_start = may_start
        self._vm = ""
        self._acknowledged: frozenset[str] = frozenset()

    async def identify(self) -> NodeIdentity:
        """Asks once for the machine, and for the VM's name, which events use.

        Azure numbers the zones of a region: zone 1 of `westeurope` is `westeurope-1`, as in the label of the node. One
        whose region is not known may be any.
        """
        self._vm = self._vm or await metadata.read_item(self._get, _VM_NAME)
        if self._identity is None:
            found = await super().identify()
            zone = f"{found.region}-{found.zone}".lower() if found.region and found.zone else ""
            self._identity = replace(found, region=found.region.lower(), zone=zone)
        return self._identity

    async def recognize(self) -> bool:
        return (await metadata.read_item(self._get, _ENVIRONMENT)).startswith("Azure")

    async def poll(self) -> Answer:
        reply = await self._get(_EVENTS)
        if reply.status != HTTPStatus.OK:
            raise SourceUnavailable(f"HTTP {reply.status}")
        try:
            found = _DECODER.decode(reply.body).Events
        except _MALFORMED as error:
            raise SourceUnavailable("malformed scheduled events") from error
        events = [event for event in found if self._vm in event.Resources]
        if not events:
            return Clear()
        answer = min(
            (self._noticed(event, reply.date) for event in events),
            key=lambda each: (-each.notice_class, each.seconds_left or 0.0),
        )
        await self._acknowledge(events)
        return answer

    def _noticed(self, event: _ScheduledEvent, date: str | None) -> Noticed:
        effect = _EFFECTS.get(event.EventType)
        if effect is None or event.EventStatus not in {"Scheduled", "Started"}:
            raise SourceUnavailable("malformed scheduled event")
        if effect.lead is None:
            return Noticed(None, None, effect.message, effect.notice_class, cancellable=True)
        if event.EventStatus == "Started":
            return Noticed(None, 0.0, effect.message, effect.notice_class)
        if not event.NotBefore:
            return Noticed(None, effect.lead, effect.message, effect.notice_class, cancellable=True)
        if not _RFC1123.fullmatch(event.NotBefore):
            raise SourceUnavailable("malformed scheduled event")
        try:
            announced = datetime.strptime(event.NotBefore, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
        except ValueError as error:
            raise SourceUnavailable("malformed scheduled event") from error
        left = metadata.seconds_left(announced, date, self._clock.wall())
        return Noticed(announced, left, effect.message, effect.notice_class, cancellable=True)

    async def _acknowledge(self, events: Iterable[_ScheduledEvent]) -> None:
        """Acknowledges each event once. After a failure the next poll tries again; the answer stays valid."""
        waiting = {event.EventId for event in events if event.EventStatus == "Scheduled"} - self._acknowledged
        if not waiting or self._may_start is None or not self._may_start():
            return
        body = msgspec.json.encode({"StartRequests": [{"EventId": event} for event in sorted(waiting)]})
        with contextlib.suppress(SourceUnavailable, TimeoutError):
            async with asyncio.timeout(_ACKNOWLEDGE_SECONDS):
                reply = await self._http.request("POST", _EVENTS, {"Content-Type": "application/json"}, body)
            if reply.status == HTTPStatus.OK:
                self._acknowledged |= waiting
                structlog.get_logger().info("event.acknowledged", events=sorted(waiting))
