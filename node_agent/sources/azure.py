"""Source `azure`: the Scheduled Events of an Azure VM.

Every VM of a scale set gets the events of all of them, so the resources of an event must name this VM. An event that
is called off, or that is over, leaves the list.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import msgspec
import structlog

from node_agent.notices import NoticeClass, SourceName
from node_agent.sources import Answer, Clear, NodeIdentity, Noticed, PriceClass, SourceUnavailable, machine
from node_agent.sources.http import MetadataHttp, Reply
from node_agent.sources.lead import seconds_left
from servicekit.clock import Clock

NAME = SourceName("azure")

_EVENTS = "scheduledevents?api-version=2020-07-01"
_ITEM = "instance/compute/{}?api-version=2021-02-01&format=text"
_VM_NAME = _ITEM.format("name")
_ENVIRONMENT = _ITEM.format("azEnvironment")
_IDENTITY = machine.Paths(
    cloud=NAME,
    uid=_ITEM.format("vmId"),
    region=_ITEM.format("location"),
    zone=_ITEM.format("zone"),
    instance_type=_ITEM.format("vmSize"),
    life_cycle=_ITEM.format("priority"),
    prices={"Spot": PriceClass.SPOT, "Low": PriceClass.SPOT, "Regular": PriceClass.ON_DEMAND},
)
# The events of a whole scale set.
_MAX_BYTES = 256 * 1024
# Seconds that an acknowledgement may take of a poll.
_ACKNOWLEDGE_SECONDS = 0.3
_RFC1123 = re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
_MALFORMED = (msgspec.DecodeError, UnicodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class _Kind:
    """The effect of an event on the VM; `lead` is the shortest notice in seconds that Azure documents."""

    notice_class: NoticeClass
    lead: float | None
    message: str


_KINDS: Mapping[str, _Kind] = {
    "Preempt": _Kind(NoticeClass.SUDDEN, 30.0, "the spot VM will be evicted"),
    "Terminate": _Kind(NoticeClass.SCHEDULED, 300.0, "the VM will be deleted"),
    "Reboot": _Kind(NoticeClass.SCHEDULED, 900.0, "the VM will be rebooted"),
    "Redeploy": _Kind(NoticeClass.SCHEDULED, 600.0, "the VM will be moved to another host"),
    # It pauses for some seconds and loses nothing.
    "Freeze": _Kind(NoticeClass.HINT, None, "the VM will be paused for some seconds"),
}


class _Event(msgspec.Struct, frozen=True):
    EventId: str
    EventType: str
    EventStatus: str
    Resources: tuple[str, ...]
    NotBefore: str | None = None


class _Document(msgspec.Struct, frozen=True):
    DocumentIncarnation: int
    Events: tuple[_Event, ...]


_DECODER: Final = msgspec.json.Decoder(_Document)


def never() -> bool:
    """Events are not acknowledged."""
    return False


class AzureSource:
    """Asks the metadata service. Needs a running loop.

    The first request for events switches the service on, which may take minutes: until then the state is unknown.

    Args:
        base_url: Scheme and host of the service, with a path before `/metadata` where a proxy or simulator has one.
        clock: For the lead time where the service's own clock is not known.
        may_start: Whether an announced event may start now. Then it is acknowledged, and Azure waits no longer.
    """

    def __init__(self, base_url: str, clock: Clock, may_start: Callable[[], bool] = never) -> None:
        self._clock = clock
        self._may_start = may_start
        self._http = MetadataHttp(base_url, clock, root="/metadata", headers={"Metadata": "true"}, max_bytes=_MAX_BYTES)
        self._identity: NodeIdentity | None = None
        self._vm = ""
        self._acknowledged: frozenset[str] = frozenset()

    @property
    def name(self) -> SourceName:
        return NAME

    async def close(self) -> None:
        await self._http.close()

    async def identify(self) -> NodeIdentity:
        """Asks once for the machine, and for the VM's name, by which events know it."""
        self._vm = self._vm or await machine.item(self._get, _VM_NAME)
        if self._identity is None:
            self._identity = await machine.identify(self._get, _IDENTITY)
        return self._identity

    async def recognize(self) -> bool:
        return (await machine.item(self._get, _ENVIRONMENT)).startswith("Azure")

    async def poll(self) -> Answer:
        reply = await self._get(_EVENTS)
        if reply.status != HTTPStatus.OK:
            raise SourceUnavailable(f"HTTP {reply.status}")
        events = [event for event in _events(reply.body) if self._vm in event.Resources]
        if not events:
            return Clear()
        answer = _most_urgent(self._noticed(event, reply.date) for event in events)
        await self._acknowledge(events)
        return answer

    def _noticed(self, event: _Event, date: str | None) -> Noticed:
        kind = _KINDS.get(event.EventType)
        if kind is None or event.EventStatus not in {"Scheduled", "Started"}:
            raise SourceUnavailable("malformed scheduled event")
        if kind.lead is None:
            return Noticed(None, None, kind.message, kind.notice_class, cancellable=True)
        if event.EventStatus == "Started":
            return Noticed(None, 0.0, kind.message, kind.notice_class)
        if not event.NotBefore:
            return Noticed(None, kind.lead, kind.message, kind.notice_class, cancellable=True)
        announced = _instant(event.NotBefore)
        left = seconds_left(announced, date, self._clock.wall())
        return Noticed(announced, left, kind.message, kind.notice_class, cancellable=True)

    async def _acknowledge(self, events: Iterable[_Event]) -> None:
        """Acknowledges each event once. A failure leaves the answer as it is, and the next poll tries again."""
        waiting = {event.EventId for event in events if event.EventStatus == "Scheduled"} - self._acknowledged
        if not waiting or not self._may_start():
            return
        body = msgspec.json.encode({"StartRequests": [{"EventId": event} for event in sorted(waiting)]})
        with contextlib.suppress(SourceUnavailable, TimeoutError):
            async with asyncio.timeout(_ACKNOWLEDGE_SECONDS):
                reply = await self._http.request("POST", _EVENTS, {"Content-Type": "application/json"}, body)
            if reply.status == HTTPStatus.OK:
                self._acknowledged |= waiting
                structlog.get_logger().info("event.acknowledged", events=sorted(waiting))

    async def _get(self, path: str) -> Reply:
        return await self._http.request("GET", path)


def _events(body: bytes) -> tuple[_Event, ...]:
    try:
        return _DECODER.decode(body).Events
    except _MALFORMED as error:
        raise SourceUnavailable("malformed scheduled events") from error


def _instant(text: str) -> datetime:
    if not _RFC1123.fullmatch(text):
        raise SourceUnavailable("malformed scheduled event")
    try:
        return datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
    except ValueError as error:
        raise SourceUnavailable("malformed scheduled event") from error


def _most_urgent(answers: Iterable[Noticed]) -> Noticed:
    def urgency(answer: Noticed) -> tuple[int, float]:
        return -answer.notice_class, 0.0 if answer.seconds_left is None else answer.seconds_left

    return min(answers, key=urgency)
