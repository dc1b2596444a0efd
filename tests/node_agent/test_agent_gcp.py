"""The source `gcp`: preemption, maintenance events, and maintenance that is announced days ahead."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from aioresponses import aioresponses

from node_agent.notices import Answer, Clear, MachinePrice, NodeIdentity, Noticed, NoticeUrgency, SourceUnavailable
from node_agent.sources.gcp import GcpSource
from tests.testkit.clocks import HandClock

BASE = "http://metadata.test"
INSTANCE = f"{BASE}/computeMetadata/v1/instance"
PREEMPTED, EVENT = f"{INSTANCE}/preempted", f"{INSTANCE}/maintenance-event"
UPCOMING = f"{INSTANCE}/upcoming-maintenance?alt=json"
FLAVOR = {"Metadata-Flavor": "Google"}
START = datetime(2026, 1, 12, 18, 2, tzinfo=UTC)
NOW = datetime(2026, 1, 5, 18, 2, tzinfo=UTC).timestamp()
WEEK = 7 * 86400.0

CLEAR, UNKNOWN = Clear(), "unknown: "
SUDDEN, SCHEDULED, HINT = NoticeUrgency.SUDDEN, NoticeUrgency.SCHEDULED, NoticeUrgency.HINT


@pytest.fixture
def clock() -> HandClock:
    return HandClock(NOW)


@pytest_asyncio.fixture
async def gcp(clock: HandClock) -> AsyncIterator[GcpSource]:
    source = GcpSource(BASE, clock)
    yield source
    await source.close()


def service(mocked: aioresponses, preempted: Any = "FALSE", event: Any = "NONE", upcoming: Any = "{ }") -> None:
    """Answers with these items; one that is a number is a status, None is not there."""
    for url, told in ((PREEMPTED, preempted), (EVENT, event), (UPCOMING, upcoming)):
        if isinstance(told, int):
            mocked.get(url, status=told, headers=FLAVOR, repeat=True)
        else:
            mocked.get(url, body=told, headers=FLAVOR, repeat=True)


async def outcome(source: GcpSource) -> Answer | str:
    try:
        return await source.poll()
    except SourceUnavailable as error:
        return f"unknown: {error}"


def check(found: Answer | str, means: Answer | str) -> None:
    if isinstance(means, str):
        assert isinstance(found, str), found
        assert found.startswith(means)
    else:
        assert found == means


PREEMPTION = Noticed(None, 30.0, "the VM is being preempted")
TERMINATION = Noticed(None, 60.0, "the VM will be terminated for host maintenance")


@pytest.mark.parametrize(
    ("items", "means"),
    [
        ({}, CLEAR),
        ({"preempted": "FALSE\n"}, CLEAR),
        ({"preempted": "TRUE"}, PREEMPTION),
        # A preemption is said at once, whatever becomes of the other items.
        ({"preempted": "TRUE", "event": 500, "upcoming": "["}, PREEMPTION),
        ({"preempted": "true"}, "unknown: malformed preempted"),
        ({"preempted": ""}, "unknown: malformed preempted"),
        ({"preempted": b"\xff\xfe"}, "unknown: malformed preempted"),
        ({"preempted": 404}, "unknown: HTTP 404"),
        ({"preempted": 403}, "unknown: HTTP 403"),
        ({"preempted": 503}, "unknown: HTTP 503"),
        ({"preempted": "x" * 5000}, "unknown: answer larger"),
        ({"event": "TERMINATE_ON_HOST_MAINTENANCE"}, TERMINATION),
        (
            {"event": "MIGRATE_ON_HOST_MAINTENANCE"},
            Noticed(None, None, "the VM will be migrated to another host", HINT, cancellable=True),
        ),
        ({"event": "DANCE_ON_HOST_MAINTENANCE"}, "unknown: malformed maintenance-event"),
        ({"event": ""}, "unknown: malformed maintenance-event"),
        ({"event": 500}, "unknown: HTTP 500"),
    ],
)
async def test_what_is_about_to_happen(gcp: GcpSource, items: dict[str, Any], means: Answer | str) -> None:
    with aioresponses() as mocked:
        service(mocked, **items)
        check(await outcome(gcp), means)


SNAKE = {
    "can_reschedule": "true",
    "latest_window_start_time": "2026-01-13T18:02:00Z",
    "maintenance_status": "PENDING",
    "type": "SCHEDULED",
    "window_end_time": "2026-01-12T22:02:00Z",
    "window_start_time": "2026-01-12T18:02:00Z",
}
CAMEL = {"canReschedule": True, "maintenanceStatus": "PENDING", "windowStartTime": "2026-01-12T18:02:00+00:00"}
PLANNED = Noticed(START, WEEK, "host maintenance of the VM is planned", SCHEDULED, cancellable=True)
UNDER_WAY = Noticed(None, 60.0, "host maintenance of the VM is under way", SCHEDULED)
MALFORMED = "unknown: malformed"


@pytest.mark.parametrize(
    ("upcoming", "means"),
    [
        (b"{ }", CLEAR),
        (b"{}", CLEAR),
        (b"NONE", CLEAR),
        (b"NONE\n", CLEAR),
        (b'{ "error": "no notifications have been received yet, try again later" }', CLEAR),
        (404, CLEAR),
        (json.dumps(SNAKE), PLANNED),
        (json.dumps(CAMEL), PLANNED),
        (json.dumps({"Upcoming maintenance": SNAKE}), PLANNED),
        (json.dumps({"upcomingMaintenance": CAMEL}), PLANNED),
        (json.dumps({**SNAKE, "window_start_time": "2026-01-12T10:02:00-08:00"}), PLANNED),
        (json.dumps({**SNAKE, "maintenance_status": "ONGOING"}), UNDER_WAY),
        (json.dumps({**SNAKE, "maintenance_status": "COMPLETE"}), CLEAR),
        # The window has begun: it may happen at any time.
        (json.dumps({**SNAKE, "window_start_time": "2026-01-05T18:00:00Z"}), UNDER_WAY),
        (json.dumps({**SNAKE, "maintenance_status": "DANCING"}), MALFORMED),
        (json.dumps({**SNAKE, "maintenance_status": None}), MALFORMED),
        (json.dumps({**SNAKE, "window_start_time": "soon"}), MALFORMED),
        (json.dumps({**SNAKE, "window_start_time": 1768240920}), MALFORMED),
        (json.dumps({"maintenance_status": "PENDING"}), MALFORMED),
        (json.dumps({"window_start_time": "2026-01-12T18:02:00Z"}), MALFORMED),
        (json.dumps({"error": "x", "maintenance_status": "DANCING"}), MALFORMED),
        (b"", MALFORMED),
        (b"null", MALFORMED),
        (b"[]", MALFORMED),
        (b'"NONE"', CLEAR),
        (b'"SOON"', MALFORMED),
        (b'{"error":', MALFORMED),
        (b"[" * 4000, MALFORMED),
        (b'{"a":' * 700, MALFORMED),
        (b"<html>", MALFORMED),
        (b"\xff\xfe", MALFORMED),
        (503, "unknown: HTTP 503"),
        (403, "unknown: HTTP 403"),
        (204, "unknown: HTTP 204"),
    ],
)
async def test_maintenance_that_is_announced_ahead(gcp: GcpSource, upcoming: Any, means: Answer | str) -> None:
    """In all its forms, also those in which the service says that there is none."""
    with aioresponses() as mocked:
        service(mocked, upcoming=upcoming)
        check(await outcome(gcp), means)


@pytest.mark.parametrize("flavor", [{}, {"Metadata-Flavor": "Other"}])
@pytest.mark.parametrize("body", ["FALSE", "TRUE"])
async def test_an_answer_without_the_header_is_another_services(
    gcp: GcpSource, flavor: dict[str, str], body: str
) -> None:
    """At the same address other clouds answer as well: what they say is neither clear nor a notice."""
    with aioresponses() as mocked:
        mocked.get(PREEMPTED, body=body, headers=flavor)
        check(await outcome(gcp), "unknown: the answer is not of Google's")
        mocked.get(f"{INSTANCE}/id", body="123", headers=flavor)
        with pytest.raises(SourceUnavailable, match="Google"):
            await gcp.recognize()


async def test_every_request_carries_the_header(gcp: GcpSource) -> None:
    with aioresponses() as mocked:
        service(mocked)
        await gcp.poll()
        assert len(mocked.requests) == 3
    assert gcp._http.session.headers["Metadata-Flavor"] == "Google"


async def test_while_nothing_is_planned_it_is_asked_seldom(gcp: GcpSource, clock: HandClock) -> None:
    """And at each poll once something is: it may be moved or called off."""
    with aioresponses() as mocked:
        service(mocked, upcoming=json.dumps(SNAKE))
        mocked.get(UPCOMING, body="{ }", headers=FLAVOR)
        mocked._matches = dict(reversed(mocked._matches.items()))
        answers = []
        for _ in range(17):
            answers.append(await gcp.poll())
            clock.steady += 1.0
        asked = sum(len(calls) for (_, url), calls in mocked.requests.items() if "upcoming" in str(url))
    assert answers == [CLEAR] * 15 + [PLANNED] * 2
    assert asked == 3


async def test_a_vm_with_gpus_has_an_hour(gcp: GcpSource) -> None:
    """The only machines that are told so much ahead, without an instant."""
    with aioresponses() as mocked:
        service(mocked, event="TERMINATE_ON_HOST_MAINTENANCE")
        identity(mocked, "projects/1/machineTypes/a2-highgpu-8g")
        await gcp.identify()
        found = await gcp.poll()
    assert isinstance(found, Noticed)
    assert (found.seconds_left, found.notice_class) == (3600.0, SCHEDULED)
    assert TERMINATION.notice_class is SUDDEN


def identity(mocked: aioresponses, machine_type: str) -> None:
    items = {
        "id": "4242",
        "zone": "projects/1/zones/us-central1-a",
        "machine-type": machine_type,
        "scheduling/preemptible": "TRUE",
    }
    for path, text in items.items():
        mocked.get(f"{INSTANCE}/{path}", body=text, headers=FLAVOR)


async def test_the_vm_is_identified_once(gcp: GcpSource) -> None:
    known = NodeIdentity("4242", "us-central1", "us-central1-a", "n2-standard-4", "gcp", MachinePrice.SPOT)
    with aioresponses() as mocked:
        identity(mocked, "projects/1/machineTypes/n2-standard-4")
        for _ in range(2):
            assert await gcp.identify() == known
        mocked.get(f"{INSTANCE}/id", body="4242", headers=FLAVOR)
        assert await gcp.recognize()
