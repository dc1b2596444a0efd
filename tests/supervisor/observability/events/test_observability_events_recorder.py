"""The event recorder sends Events, limits their rate, and survives an API server that fails or refuses."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from aiohttp import web
from structlog.testing import capture_logs

from supervisor.cluster.events import REPORTER
from tests.supervisor.observability.events.observability_events import (
    JOB,
    TRAINING_JOB,
    EventScene,
    answer,
    pod,
    recording,
)
from tests.testkit.waiting import until


async def counted(scene: EventScene, outcomes: Mapping[str, int]) -> None:
    await until(lambda: scene.outcomes() == outcomes, lambda: f"{outcomes} in {scene.outcomes()}")


async def received(scene: EventScene, count: int) -> None:
    await until(lambda: len(scene.server.events) >= count, lambda: f"{count} Events in {scene.server.events}")


async def test_an_event_says_who_what_and_why() -> None:
    """In the form of events.k8s.io/v1, in the namespace of what it is about."""
    async with recording() as scene:
        scene.decides("It runs.")
        await counted(scene, {"sent": 2})
        first, second = scene.server.events.values()
    assert first == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": first["metadata"]["name"], "namespace": "team"},
        "eventTime": first["eventTime"],
        "reportingController": REPORTER,
        "reportingInstance": "pod-1",
        "reason": "Running",
        "action": "Run",
        "type": "Normal",
        "note": "It runs.",
        "regarding": {
            "apiVersion": JOB.api_version,
            "kind": "SupervisedJob",
            "namespace": "team",
            "name": "trainingjob.bert",
            "uid": "1",
        },
    }
    assert second["regarding"]["kind"] == TRAINING_JOB.kind
    assert second["related"] == first["regarding"]


async def test_events_on_one_object_are_named_in_their_order() -> None:
    async with recording() as scene:
        scene.known.jobs = (JOB,)
        for number in range(20):
            scene.decides(f"Step {number}.")
            await received(scene, number + 1)
        names = [event["metadata"]["name"] for event in scene.server.events.values()]
    assert names == sorted(names)


async def test_what_has_no_namespace_is_talked_about_in_default() -> None:
    async with recording() as scene:
        scene.notices(1)
        await counted(scene, {"sent": 1})
        (event,) = scene.server.events.values()
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["regarding"]


async def test_what_is_said_again_is_counted_up() -> None:
    """In one Event, also where it was said again before the first was sent; another sentence is another one."""
    async with recording() as scene:
        scene.known.jobs = (JOB,)
        scene.decides("It runs.")
        scene.decides("It runs.")
        await until(lambda: len(scene.server.events) == 1)
        scene.decides("It runs.")
        scene.decides("It runs.")
        await counted(scene, {"sent": 1, "aggregated": 3})
        (event,) = scene.server.events.values()
        assert event["series"]["count"] == 4
        scene.decides("It runs on.")
        await counted(scene, {"sent": 2, "aggregated": 3})
        assert scene.server.notes() == ["It runs.", "It runs on."]


async def test_after_a_while_the_same_is_another_event() -> None:
    async with recording(aggregation_seconds=0.0) as scene:
        scene.known.jobs = (JOB,)
        for count in (1, 2):
            scene.decides("It runs.")
            await counted(scene, {"sent": count})
    async with recording() as scene:
        scene.known.jobs = (JOB,)
        scene.decides("It runs.")
        await counted(scene, {"sent": 1})
        scene.server.events.clear()
        scene.decides("It runs.")
        await counted(scene, {"sent": 2})
        assert [method for method, _ in scene.server.requests] == ["POST", "PATCH", "POST"]


async def test_thousands_of_notices_are_no_flood() -> None:
    """A burst and then the rate; jobs come first, and what is too much is dropped."""
    async with recording(rate=50.0, burst=20.0, max_pending=100) as scene:
        scene.known.noticed_pods = [pod(number) for number in range(8)]
        begun = time.monotonic()
        for number in range(2500):
            scene.notices(number)
        scene.decides("It stops.")
        queueing = time.monotonic() - begun
        await until(lambda: scene.outcomes().get("sent", 0) >= 60)
        seconds = time.monotonic() - begun - queueing
        sent = len(scene.server.requests)
        assert sent <= 20 + 50 * (seconds + 0.1) + 2
        assert scene.server.notes()[:2] == ["It stops.", "It stops."]
        outcomes = scene.outcomes()
        assert outcomes["dropped"] == 2500 * 9 - 200
        print(f"2,500 notices of 8 pods each were heard in {queueing:.2f} s")  # noqa: T201 - what a person waits for


async def test_an_api_server_that_is_away_gets_it_later() -> None:
    """It is logged once that it fails, and once that it does not any more."""
    asked: list[web.Request] = []

    def busy(request: web.Request) -> web.Response | None:
        asked.append(request)
        return web.json_response({"message": "busy"}, status=503) if len(asked) < 3 else None

    with capture_logs() as logs:
        async with recording() as scene:
            scene.server.refuse = busy
            scene.known.jobs = (JOB,)
            scene.decides("It runs.")
            await counted(scene, {"sent": 1})
            assert scene.server.notes() == ["It runs."]
    assert [line["event"] for line in logs] == ["dependency.failing", "dependency.recovered"]


async def test_an_answer_that_got_lost_makes_no_second_event() -> None:
    async with recording() as scene:
        scene.server.lost = 1
        scene.known.jobs = (JOB,)
        scene.decides("It runs.")
        await counted(scene, {"sent": 1})
        assert len(scene.server.requests) == 2
        assert scene.server.notes() == ["It runs."]


async def test_a_server_that_hangs_keeps_nobody_waiting() -> None:
    """What is heard meanwhile is said when the server answers again, the latest of each topic."""
    async with recording(timeout_seconds=0.2) as scene:
        scene.server.open.clear()
        scene.known.jobs = (JOB,)
        for reason in ("First.", "Second.", "Third."):
            scene.decides(reason)
            await until(lambda: len(scene.server.requests) > 0)
        for number in range(10):
            scene.notices(number)
        await until(lambda: len(scene.server.requests) > 1)
        assert scene.outcomes() == {"aggregated": 2}
        scene.server.open.set()
        await counted(scene, {"aggregated": 2, "sent": 11})


async def test_what_could_not_be_said_for_long_is_not_said_any_more() -> None:
    """Nobody would know what to make of it."""
    async with recording(max_age_seconds=0.05) as scene:
        scene.server.refuse = answer(503, "busy")
        scene.decides("It runs.")
        await counted(scene, {"dropped": 2})


async def test_without_the_right_it_is_said_once_and_the_rest_goes_on() -> None:
    """In the words of the API server, which name the right; nothing is tried twice."""
    with capture_logs() as logs:
        async with recording() as scene:
            scene.server.refuse = answer(403, 'events.events.k8s.io is forbidden: cannot create resource "events"')
            for number in range(5):
                scene.notices(number)
            await counted(scene, {"failed": 5})
            assert len(scene.server.requests) == 5
    assert [(line["log_level"], line["event"]) for line in logs if line["log_level"] != "debug"] == [
        ("warning", "dependency.failing")
    ]
    assert 'cannot create resource "events"' in logs[0]["reason"]


async def test_a_namespace_that_is_going_is_no_fault_of_ours() -> None:
    with capture_logs() as logs:
        async with recording() as scene:
            scene.server.refuse = answer(403, "namespace team is forbidden because it is being terminated")
            scene.decides("It runs.")
            await counted(scene, {"failed": 2})
            scene.server.refuse = answer(404, "namespaces not found")
            scene.decides("It runs on.")
            await counted(scene, {"failed": 4})
    assert logs == []


async def test_what_no_event_can_hold_costs_that_event_alone() -> None:
    with capture_logs() as logs:
        async with recording() as scene:
            scene.known.jobs = (replace(TRAINING_JOB, name="\ud800"),)
            scene.decides("It runs.")
            scene.known.jobs = (JOB,)
            scene.decides("It runs.")
            await counted(scene, {"failed": 1, "sent": 1})
    assert [(line["event"], line["where"]) for line in logs] == [("internal.fault", "events")]


async def test_who_is_not_certain_to_lead_says_nothing() -> None:
    leads = asyncio.Event()
    async with recording(may_write=leads.is_set) as scene:
        scene.notices(1)
        await until(lambda: scene.recorder._server.requests > 0)
        assert scene.server.requests == []
        leads.set()
        await counted(scene, {"sent": 1})
