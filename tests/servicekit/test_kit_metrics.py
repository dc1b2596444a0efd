"""The metrics server: what it answers, and that nothing which happens to it concerns anybody else."""

import asyncio
import socket
from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from structlog.testing import capture_logs

from servicekit import metrics
from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.http_server import Drop
from servicekit.metrics import LabelLimiter, MetricsServer, exemplar, guarded
from tests.testkit.waiting import until

ANYWHERE = Address("127.0.0.1", 0)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def registry() -> CollectorRegistry:
    made = metrics.registry()
    seconds = Histogram("some_seconds", "Seconds.", registry=made, buckets=(1.0,))
    seconds.observe(0.5, exemplar({"notice_id": "metadata/uid-1"}))
    return made


async def get(address: Address, path: str = "/metrics", accept: str = "") -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession(headers={"Accept": accept}) as session,
        session.get(f"http://{address}{path}") as answer,
    ):
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_it_answers_as_it_is_asked(registry: CollectorRegistry) -> None:
    """OpenMetrics has exemplars and the text has not; neither says when a counter was made."""
    async with MetricsServer(registry, ANYWHERE, Clock(), Bulkhead(Clock())).serving() as address:
        status, kind, text = await get(address)
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        assert 'some_seconds_bucket{le="1.0"} 1.0\n' in text
        assert "created" not in text
        status, kind, text = await get(address, accept=OPENMETRICS)
        assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
        # It has no annotations.
        [family] = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        assert [sample.exemplar.labels for sample in family.samples if sample.exemplar] == [
            {"notice_id": "metadata/uid-1"}
        ]
        assert (await get(address, "/"))[0] == 404


async def test_it_does_not_name_versions(registry: CollectorRegistry) -> None:
    async with (
        MetricsServer(registry, ANYWHERE, Clock(), Bulkhead(Clock())).serving() as address,
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics") as answer,
    ):
        assert answer.headers["Server"] == "job-supervisor"


class Broken(Collector):
    mended = False

    def collect(self) -> Iterator[Metric]:
        if not self.mended:
            raise LookupError("lost")
        yield from ()


async def test_what_cannot_be_collected_is_said_once() -> None:
    made, broken = metrics.registry(), Broken()
    made.register(broken)
    with capture_logs() as logs:
        async with MetricsServer(made, ANYWHERE, Clock(), Bulkhead(Clock())).serving() as address:
            assert [(await get(address))[0] for _ in range(3)] == [500, 500, 500]
            broken.mended = True
            assert (await get(address))[0] == 200
    assert [line["event"] for line in logs] == ["internal.fault", "internal.recovered"]


async def test_an_address_that_is_taken_is_tried_again(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service goes on without, says so once, and serves when it can."""
    monkeypatch.setattr(metrics, "_RETRY_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as taken, capture_logs() as logs:
        address = Address("127.0.0.1", taken.getsockname()[1])
        task = asyncio.create_task(MetricsServer(registry, address, Clock(), Bulkhead(Clock())).run())
        await until(lambda: logs)
        taken.close()
        await until(lambda: logs[-1]["event"] == "metrics.listening")
        assert (await get(address))[0] == 200
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [line["event"] for line in logs] == ["dependency.failing", "dependency.recovered", "metrics.listening"]


async def test_bytes_that_are_not_http_are_nobodys_concern(
    registry: CollectorRegistry, capfd: pytest.CaptureFixture[str]
) -> None:
    async with MetricsServer(registry, ANYWHERE, Clock(), Bulkhead(Clock())).serving() as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"\x16\x03\x01\x00\xa5\r\n\r\n")
        assert b"400" in await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert (await get(address))[0] == 200
    assert capfd.readouterr().err == ""


async def test_who_never_reads_is_dropped(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that has nothing more to ask, and so is who never asks; others are answered meanwhile."""
    drops: list[Drop] = []
    monkeypatch.setattr(metrics, "_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(metrics, "ignore_drop", drops.append)
    many = Counter("many", "More than the buffers of both sides hold.", ("number",), registry=registry)
    for number in range(60_000):
        many.labels("x" * 100 + str(number))
    async with MetricsServer(registry, ANYWHERE, Clock(), Bulkhead(Clock())).serving() as address:
        with socket.socket() as deaf, socket.create_connection((address.host, address.port)):
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect((address.host, address.port))
            deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await get(address, "/"))[0] == 404
            await until(lambda: sorted(drops) == [Drop.IDLE, Drop.NO_REQUEST])
            assert (await get(address, "/"))[0] == 404


def test_an_exemplar_has_room_for_so_much() -> None:
    """What comes first stays; a histogram would refuse what is longer."""
    assert exemplar({"notice_id": "n" * 119}) == {"notice_id": "n" * 119}
    assert exemplar({"notice_id": "n" * 120}) == {}
    assert exemplar({"notice_id": "n", "job": "j" * 200}) == {"notice_id": "n"}


def test_labels_are_few() -> None:
    few = LabelLimiter(2)
    assert [few.of("a", "x"), few.of("b", "x"), few.of("a", "y"), few.of("a", "x")] == [
        ("a", "x"),
        ("b", "x"),
        ("other", "other"),
        ("a", "x"),
    ]


class Counting:
    """Has a hook that raises for negative amounts."""

    def __init__(self) -> None:
        self.bulkhead = Bulkhead(Clock())
        self.counter = Counter("some", "Some.", registry=metrics.registry())

    @guarded
    def add(self, amount: float) -> None:
        self.counter.inc(amount)


def test_a_hook_that_raises_is_harmless() -> None:
    """Its fault is logged once, counted each time, and does not reach the caller."""
    counting = Counting()
    with capture_logs() as logs:
        counting.add(-1)
        counting.add(-1)
        counting.add(2)
    assert [(line["event"], line["where"], line["key"]) for line in logs] == [("internal.fault", "metrics", "add")]
    assert counting.bulkhead.counts == {"metrics": 2}
    assert next(iter(counting.counter.collect())).samples[0].value == 2
