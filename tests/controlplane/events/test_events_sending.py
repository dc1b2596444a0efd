"""A real API server accepts the supervisor's Events with only the supervisor's permissions."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.server import ApiServer
from supervisor.observability.events.api import SendResult
from supervisor.observability.events.recorder import EventLimits, EventRecorder
from supervisor.observability.events.rules import ObjectReference
from supervisor.observability.journal import JobChanged, NoticeChanged
from tests.controlplane.ingest.ingest_cluster import EVENTS, IngestScene, condition
from tests.supervisor.decide.decide_builders import notice, running_job
from tests.supervisor.observability.events.observability_events import Known
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.credentials import write_kubeconfig
from tests.testkit.controlplane.installed import OWN_RULES, RULES
from tests.testkit.controlplane.kubectl import kubectl
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.waiting import until

_OURS = "job-supervisor.kube-ai.io/supervisor"


@asynccontextmanager
async def recording(here: IngestScene, known: Known, **limits: float) -> AsyncIterator[EventRecorder]:
    server = await ApiServer.connect(str(here.place.kubeconfig), 5.0)
    bounds = replace(EventLimits(), **limits)  # type: ignore[arg-type]
    recorder = EventRecorder(server, known, "pod-1", Clock(), Bulkhead(Clock()), bounds)
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.close()


def runs(recorder: EventRecorder, reason: str = "It runs.") -> None:
    job = running_job()
    recorder.on_change(JobChanged(None, replace(job, decision=replace(job.decision, reason=reason)), Clock().now()))


async def ours(api: Api) -> list[Any]:
    found = (await api.get(EVENTS))["items"]
    return [each for each in found if each["reportingComponent"] == _OURS]


async def count(here: IngestScene, number: int) -> list[Any]:
    async def there() -> list[Any]:
        found = await ours(here.api)
        return found if len(found) == number else []

    return await until(there, f"{number} Events")


def about(pod: Any) -> ObjectReference:
    metadata = pod["metadata"]
    return ObjectReference("v1", "Pod", metadata["namespace"], metadata["name"], metadata["uid"])


async def test_what_is_said_again_is_one_event_that_kubectl_counts(here: IngestScene, tmp_path: Path) -> None:
    """In the list that describe shows below the object, with its sentence and who says so."""
    pod = await here.pod("p")
    async with recording(here, Known(jobs=(about(pod),))) as recorder:
        runs(recorder)
        await count(here, 1)
        for times in (2, 3):
            runs(recorder)
            await until(lambda times=times: _counted(here, times), f"it is counted {times} times")  # type: ignore[misc]
        runs(recorder, "It runs on.")
        await count(here, 2)
    described = await kubectl(here.place.plane.cluster, tmp_path, "describe", "pod", "p")
    lines = [line for line in described.splitlines() if _OURS in line]
    assert len(lines) == 2
    assert any("(x3 over" in line and line.endswith("It runs.") for line in lines)
    assert any(line.split()[:2] == ["Normal", "Running"] and line.endswith("It runs on.") for line in lines)


async def _counted(here: IngestScene, times: int) -> bool:
    return [each.get("series", {}).get("count") for each in await ours(here.api)] == [times]


async def test_what_has_no_namespace_lies_in_default_and_is_described_too(here: IngestScene, tmp_path: Path) -> None:
    """As an Event on a node would."""
    node = (await here.node("n"))["metadata"]
    known = Known(resource=ObjectReference("v1", "Node", "", "n", node["uid"]), every_notice_has_its_own=False)
    async with recording(here, known) as recorder:
        recorder.on_change(NoticeChanged(None, notice(1), Clock().now()))
        (event,) = await count(here, 1)
    assert event["metadata"]["namespace"] == "default"
    assert "Node n1 will be reclaimed" in await kubectl(here.place.plane.cluster, tmp_path, "describe", "node", "n")


async def test_thousands_of_notices_are_sent_at_the_rate_and_the_jobs_first(here: IngestScene) -> None:
    """What is too much is dropped and counted; the API server takes all the others."""
    pods = [ObjectReference("v1", "Pod", "default", f"p{number}", f"u{number}") for number in range(8)]
    job = ObjectReference("kai.alibabacloud.com/v1alpha1", "TrainingJob", "default", "bert", "uid")
    async with recording(here, Known(pods, jobs=(job,)), rate=20.0, burst=20.0, max_pending=50) as recorder:
        begun = time.monotonic()
        for number in range(2500):
            recorder.on_change(NoticeChanged(None, notice(number), Clock().now()))
        runs(recorder, "It stops.")
        found = await until(lambda: _at_least(here, 40), "40 Events")
        seconds = time.monotonic() - begun
        assert len(found) <= 20 + 20 * seconds + 1
        assert "It stops." in [each["message"] for each in found]
        assert recorder.outcomes[SendResult.DROPPED] == 2500 * 9 - 100
        await until(lambda: _at_least(here, 101), "all that waited")
        assert recorder.outcomes[SendResult.FAILED] == 0


async def _counts(address: str, sample: str) -> bool:
    async with aiohttp.ClientSession() as http, http.get(f"http://{address}/metrics") as answer:
        return f"job_supervisor_kubernetes_events_total{sample}" in await answer.text()


async def _at_least(here: IngestScene, number: int) -> list[Any]:
    found = await ours(here.api)
    return found if len(found) >= number else []


async def test_an_api_server_that_comes_back_is_told(here: IngestScene) -> None:
    plane = here.place.plane
    async with recording(here, Known(jobs=(ObjectReference("v1", "Pod", "default", "p", "uid"),))) as recorder:
        runs(recorder)
        await count(here, 1)
        plane.kill(BinaryProgram.API_SERVER)
        runs(recorder, "It runs on.")

        async def missed() -> bool:
            return recorder._fault.reason is not None

        await until(missed, "the API server is missed")
        plane.launch(BinaryProgram.API_SERVER)
        plane.wait_ready(BinaryProgram.API_SERVER)
        assert [each["message"] for each in await count(here, 2)].count("It runs on.") == 1


async def test_without_the_right_to_make_events_the_rest_goes_on(here: IngestScene, tmp_path: Path) -> None:
    cluster = here.place.plane.cluster
    namespace = Namespace(cluster, here.api)
    await here.api.create("/api/v1/namespaces", {"metadata": {"name": namespace.name}})
    rules = [rule for rule in RULES if rule.get("apiGroups") != ["events.k8s.io"]]
    assert len(rules) == len(RULES) - 1
    await namespace.account("mute", cluster_rules=(*rules, *OWN_RULES))
    kubeconfig = tmp_path / "mute.kubeconfig"
    write_kubeconfig(kubeconfig, cluster.url, cluster.ca, await namespace.token("mute"), "default")
    for name in ("a", "b"):
        await here.node(name)
    async with here.supervisor(tmp_path / "world", kubeconfig=kubeconfig) as one:
        for name in ("a", "b"):
            await here.node_says(name, condition("InstanceExpired"))
            await here.notice(name, "node-condition")
        log = one.paths.log("supervisor")

        async def said() -> bool:
            return "Kubernetes Events" in log.read_text()

        await until(said, "the log to name what is missing")
        lines = [line for line in log.read_text().splitlines() if "Kubernetes Events" in line]
        assert len(lines) == 1
        assert 'cannot create resource "events" in API group "events.k8s.io"' in json.loads(lines[0])["reason"]
    assert await ours(here.api) == []


@pytest.mark.long
async def test_whoever_wants_none_gets_none(here: IngestScene, tmp_path: Path) -> None:
    """By the setting; with it, a notice is told of, and the metrics count the Event."""
    await here.node("n")
    async with here.supervisor(tmp_path / "silent", KUBERNETES_EVENTS="false"):
        await here.node_says("n", condition("InstanceExpired"))
        await here.notice("n", "node-condition")
    await here.node("m")
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
    async with here.supervisor(tmp_path / "talking", METRICS_ADDRESS=address):
        await here.node_says("m", condition("InstanceExpired"))
        found = await until(lambda: ours(here.api), "an Event")
        await until(partial(_counts, address, f'{{outcome="sent"}} {len(found)}.0'), "the metrics count it")
    assert {each["involvedObject"]["kind"] for each in found} == {"ReclaimNotice"}
    assert all("m will be reclaimed" in each["message"] for each in found)
