"""The source `azure`: scheduled events of this VM, and their acknowledgement."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from aioresponses import aioresponses

from node_agent.node import ThisNode, machine_of
from node_agent.notices import Answer, Clear, MachinePrice, NodeIdentity, Noticed, NoticeUrgency, SourceUnavailable
from node_agent.sources.azure import AzureSource
from tests.testkit.clocks import HandClock

BASE = "http://metadata.test/metadata"
EVENTS = f"{BASE}/scheduledevents?api-version=2020-07-01"
NOW = datetime(2026, 1, 5, 17, 57, tzinfo=UTC).timestamp()
INSTANT = datetime(2026, 1, 5, 18, 2, tzinfo=UTC)
NOT_BEFORE = "Mon, 05 Jan 2026 18:02:00 GMT"
VM = "pool_7"

CLEAR = Clear()
SUDDEN, SCHEDULED, HINT = NoticeUrgency.SUDDEN, NoticeUrgency.SCHEDULED, NoticeUrgency.HINT


def item(name: str) -> str:
    return f"{BASE}/instance/compute/{name}?api-version=2021-02-01&format=text"


IDENTITY = {
    "name": VM,
    "vmId": "vm-1",
    "location": "westeurope",
    "zone": "2",
    "vmSize": "Standard_N",
    "priority": "Spot",
}


def serve_identity(mocked: aioresponses, **others: str) -> None:
    for name, text in {**IDENTITY, **others}.items():
        mocked.get(item(name), body=text)


@pytest.fixture
def idle() -> list[bool]:
    """Whether the node is idle, as its one element."""
    return [False]


@pytest_asyncio.fixture
async def azure(idle: list[bool]) -> AsyncIterator[AzureSource]:
    source = AzureSource("http://metadata.test", HandClock(NOW), lambda: idle[0])
    with aioresponses() as mocked:
        serve_identity(mocked)
        await source.identify()
    yield source
    await source.close()


def event(kind: str = "Preempt", **fields: Any) -> dict[str, Any]:
    return {
        "EventId": f"id-{kind}",
        "EventStatus": "Scheduled",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [VM],
        "NotBefore": NOT_BEFORE,
        "Description": "",
        "EventSource": "Platform",
        **fields,
    }


def listed(*events: dict[str, Any]) -> bytes:
    return json.dumps({"DocumentIncarnation": 3, "Events": events}).encode()


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in event().items() if name not in names}


def noticed(notice_class: NoticeUrgency, message: str) -> Noticed:
    return Noticed(INSTANT, 300.0, message, notice_class, cancellable=True)


async def outcome(source: AzureSource, body: bytes | None, status: int = 200) -> Answer | str:
    with aioresponses() as mocked:
        mocked.get(EVENTS, status=status, body=body or b"")
        try:
            return await source.poll()
        except SourceUnavailable as error:
            return f"unknown: {error}"


PREEMPT = noticed(SUDDEN, "the spot VM will be evicted")
MALFORMED = "unknown: malformed"
DAYS = datetime(2026, 1, 9, 18, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("body", "means"),
    [
        (listed(), CLEAR),
        (listed(event()), PREEMPT),
        (listed(event("Terminate")), noticed(SCHEDULED, "the VM will be deleted")),
        (listed(event("Reboot")), noticed(SCHEDULED, "the VM will be rebooted")),
        (listed(event("Redeploy")), noticed(SCHEDULED, "the VM will be moved to another host")),
        (
            listed(event("Freeze")),
            Noticed(None, None, "the VM will be paused for some seconds", HINT, cancellable=True),
        ),
        # Everybody in the scale set gets every event.
        (listed(event(Resources=["pool_8"])), CLEAR),
        (listed(event(Resources=[])), CLEAR),
        (listed(event(Resources=["pool_8", VM])), PREEMPT),
        (listed(event(Resources=["pool_8"], EventType="Dance")), CLEAR),
        (listed(event("Freeze"), event("Reboot"), event()), PREEMPT),
        (listed(event(), event("Freeze"), event("Reboot")), PREEMPT),
        # Without an instant: the shortest notice that Azure documents.
        (
            listed(event(NotBefore="")),
            Noticed(None, 30.0, "the spot VM will be evicted", SUDDEN, cancellable=True),
        ),
        (
            listed(event("Reboot", NotBefore=None)),
            Noticed(None, 900.0, "the VM will be rebooted", SCHEDULED, cancellable=True),
        ),
        # It has begun, so it cannot be called off any more.
        (listed(event(EventStatus="Started", NotBefore="")), Noticed(None, 0.0, "the spot VM will be evicted", SUDDEN)),
        # Hardware that will fail is announced days ahead.
        (
            listed(event("Redeploy", NotBefore="Fri, 09 Jan 2026 18:02:00 GMT")),
            Noticed(
                DAYS,
                DAYS.timestamp() - NOW,
                "the VM will be moved to another host",
                SCHEDULED,
                cancellable=True,
            ),
        ),
        (listed(event("Dance")), MALFORMED),
        (listed(event(EventStatus="Pondered")), MALFORMED),
        (listed(event(EventStatus="")), MALFORMED),
        (listed(event(NotBefore="2026-01-05T18:02:00Z")), MALFORMED),
        (listed(event(NotBefore="Mon, 05 Jan 2026 18:02:00 CET")), MALFORMED),
        (listed(event(NotBefore="Mon, 31 Feb 2026 18:02:00 GMT")), MALFORMED),
        (listed(event(NotBefore="Mon, 5 Jan 2026 18:02:00 GMT")), MALFORMED),
        (listed(event(NotBefore="soon")), MALFORMED),
        (listed(event(NotBefore=7)), MALFORMED),
        (listed(without("EventType")), MALFORMED),
        (listed(without("Resources")), MALFORMED),
        (listed(without("EventId")), MALFORMED),
        (listed(event(Resources=VM)), MALFORMED),
        (listed(event(Resources=[7])), MALFORMED),
        (b'{"Events":[]}', MALFORMED),
        (b'{"DocumentIncarnation":3}', MALFORMED),
        (b'{"DocumentIncarnation":3,"Events":null}', MALFORMED),
        (b"", MALFORMED),
        (b"{}", MALFORMED),
        (b"[]", MALFORMED),
        (b"null", MALFORMED),
        (b"<html>", MALFORMED),
        (b"[" * 100_000, MALFORMED),
        (b"\xff\xfe", MALFORMED),
        (b" " * 300_000, "unknown: answer larger"),
        (listed(*[event(Resources=[f"pool_{n}"]) for n in range(600)], event()), PREEMPT),
    ],
)
async def test_what_a_list_of_events_means(azure: AzureSource, body: bytes, means: Answer | str) -> None:
    found = await outcome(azure, body)
    if isinstance(means, str):
        assert isinstance(found, str), found
        assert found.startswith(means)
    else:
        assert found == means


@pytest.mark.parametrize("status", [204, 302, 400, 403, 404, 410, 429, 500, 503])
async def test_another_status_is_unknown(azure: AzureSource, status: int) -> None:
    """Also 404, and 400 for the lack of the header: the list is there on every VM."""
    assert await outcome(azure, listed(event()), status) == f"unknown: HTTP {status}"


async def test_the_vm_is_identified_once() -> None:
    """Its name is part of that: without it nobody could tell whose an event is."""
    source = AzureSource("http://metadata.test", HandClock(NOW))
    with aioresponses() as mocked:
        mocked.get(item("name"), status=404)
        with pytest.raises(SourceUnavailable, match="name"):
            await source.identify()
        serve_identity(mocked, zone="")
        for _ in range(2):
            assert await source.identify() == NodeIdentity(
                "vm-1", "westeurope", "", "Standard_N", "azure", MachinePrice.SPOT
            )
        mocked.get(item("azEnvironment"), body="AzureChinaCloud")
        assert await source.recognize()
        mocked.get(item("azEnvironment"), body="Elsewhere")
        assert not await source.recognize()
    assert source._http.session.headers["Metadata"] == "true"
    await source.close()


@pytest.mark.parametrize("label_first", [True, False])
async def test_a_zone_has_the_name_that_the_label_of_the_node_gives_it(*, label_first: bool) -> None:
    """Zones are numbered by region. Whichever is read first, machines of one zone are of one capacity pool."""
    source = AzureSource("http://metadata.test", HandClock(NOW))
    with aioresponses() as mocked:
        serve_identity(mocked, location="WestEurope")
        identity = await source.identify()
    await source.close()
    labelled = machine_of(
        {"topology.kubernetes.io/region": "westeurope", "topology.kubernetes.io/zone": "westeurope-2"}
    )
    node = ThisNode("n1", "uid-1")
    for each in (labelled, identity) if label_first else (identity, labelled):
        node.describe(each)
    assert (node.machine.region, node.machine.zone) == ("westeurope", "westeurope-2")


async def test_a_zone_of_an_unknown_region_is_unknown() -> None:
    """Every region has a zone 2."""
    source = AzureSource("http://metadata.test", HandClock(NOW))
    with aioresponses() as mocked:
        serve_identity(mocked, location="")
        assert not (await source.identify()).zone
    await source.close()


def posted(mocked: aioresponses) -> list[Any]:
    return [
        json.loads(call.kwargs["data"]) for key, calls in mocked.requests.items() if key[0] == "POST" for call in calls
    ]


async def polls(source: AzureSource, times: int = 1) -> None:
    for _ in range(times):
        assert isinstance(await source.poll(), Noticed)


async def test_an_event_is_acknowledged_once_and_only_on_an_idle_node(azure: AzureSource, idle: list[bool]) -> None:
    """Not while a job is on the node; then once, and a later event by itself."""
    with aioresponses() as mocked:
        mocked.get(EVENTS, body=listed(event(), event("Freeze", Resources=["pool_8"])), repeat=True)
        mocked.post(EVENTS, repeat=True)
        await polls(azure, 3)
        assert not posted(mocked)
        idle[0] = True
        await polls(azure, 3)
        assert posted(mocked) == [{"StartRequests": [{"EventId": "id-Preempt"}]}]
    with aioresponses() as mocked:
        mocked.get(EVENTS, body=listed(event(), event("Reboot")))
        mocked.post(EVENTS)
        await polls(azure)
        assert posted(mocked) == [{"StartRequests": [{"EventId": "id-Reboot"}]}]


@pytest.mark.parametrize("failure", [{"status": 500}, {"status": 429}, {"exception": TimeoutError()}])
async def test_an_acknowledgement_that_fails_is_tried_again(
    azure: AzureSource, idle: list[bool], failure: dict[str, Any]
) -> None:
    """And takes nothing away from the notice."""
    idle[0] = True
    with aioresponses() as mocked:
        mocked.get(EVENTS, body=listed(event()), repeat=True)
        mocked.post(EVENTS, **failure)
        mocked.post(EVENTS)
        await polls(azure, 3)
        assert len(posted(mocked)) == 2


async def test_what_has_started_needs_no_acknowledgement(azure: AzureSource, idle: list[bool]) -> None:
    idle[0] = True
    with aioresponses() as mocked:
        mocked.get(EVENTS, body=listed(event(EventStatus="Started")))
        await polls(azure)
        assert not posted(mocked)
