"""A whole supervisor with traces, and one without."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.observability.groups import GroupOutcome
from supervisor.observability.metrics.wiring import Metrics
from supervisor.observability.traces.export import OtlpExport
from supervisor.observability.traces.follower import ReclaimTraces, trace_of
from supervisor.refusals import Refusals
from supervisor.settings import PREFIX
from tests.supervisor.observability.traces.traces_world import Collector, attributes_of, collecting
from tests.testkit.forbidden_imports import forbidding
from tests.testkit.server_process import started
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import until

P = "job_supervisor."


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector, which the variables name."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{collector.address}")
        yield collector


@pytest.fixture
def out(there: Collector) -> Iterator[OtlpExport]:
    assert there.address
    export = OtlpExport("1", "", Clock())
    yield export
    export.close()


async def names(there: Collector, wanted: set[str]) -> list[str]:
    await until(lambda: wanted <= {span.name for span in there.spans}, lambda: [span.name for span in there.spans])
    return [span.name for span in there.spans]


async def suspended(served: Served) -> None:
    """A job of two hosts loses one, is saved and suspended."""
    agents = await served.peers.agents(["n2", "n3"])
    _, order = await served.peers.running("small", ["n2", "n3"])
    process = await served.peers.process(order["token"], "n2", rank=0)
    await agents["n3"].notices("n3", left=120.0)
    await process.reports("saved", await process.lines.matching(directive="STOP"), step=41)
    await until(lambda: served.job("small").decision.phase is Phase.SUSPENDED)


async def test_a_group_is_traced_from_the_agents_report_on(tmp_path: Path, there: Collector, out: OtlpExport) -> None:
    """Over a restart of the supervisor, which stands for another leader: the trace is the same."""
    async with serving(tmp_path, traces=out) as served:
        await suspended(served)
        await names(there, {"notice", "decide", "directive", "acknowledge", "stopping"})
        ids = trace_of(served.job("small"), GroupOutcome.STOPPED)
    async with serving(tmp_path, traces=out) as served:
        job = served.job("small")
        await served.store.forget_job(job.name, job.uid)
        told = await names(there, {"suspended", "reclaim"})
    assert {int.from_bytes(span.trace_id) for span in there.spans} == {ids.trace}
    assert len(told) == len(set(told))
    by_name = {span.name: span for span in there.spans}
    assert attributes_of(by_name["acknowledge"].attributes)[f"{P}step"] == 41
    assert attributes_of(by_name["notice"].attributes)[f"{P}notice_id"] == "metadata/n3/uid-n3"
    instants = [by_name[name].end_time_unix_nano for name in ("notice", "decide", "directive", "acknowledge")]
    assert instants == sorted(instants)


async def test_a_trace_that_cannot_be_taken_over_stops_nothing(
    tmp_path: Path, out: OtlpExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, traces=out) as served:
        await suspended(served)

    def spoiled(_self: ReclaimTraces, _job: SupervisedJob) -> None:
        raise RuntimeError

    monkeypatch.setattr(ReclaimTraces, "take_over", spoiled)
    async with serving(tmp_path, traces=out) as served:
        agent = await served.peers.agent("m1")
        await agent.notices("m1", left=120.0)
        await until(lambda: "m1" in served.notices())


async def test_a_drill_is_marked(tmp_path: Path, there: Collector, out: OtlpExport) -> None:
    async with serving(tmp_path, traces=out) as served:
        await served.peers.agents(["n1", "n2", "n3"])
        await served.peers.running("train", ["n1", "n2", "n3"], min_workers=2)
        operator = served.peers.tokens.operator("alice")
        assert (await served.peers.post("/v1/drills", operator, {"node": "n1", "lead_seconds": 60})).status == 200
        await names(there, {"notice", "decide"})
        assert all(attributes_of(span.attributes)[f"{P}drill"] is True for span in there.spans)


async def test_an_exemplar_leads_to_the_trace_and_spans_are_counted(
    tmp_path: Path, there: Collector, out: OtlpExport
) -> None:
    metrics = Metrics("1", Refusals(), Bulkhead(Clock()), Clock())
    async with serving(tmp_path, traces=out, hooks=metrics.for_leader(lambda: True)) as served:
        await suspended(served)
        await names(there, {"directive"})
        await until(lambda: out.outcomes()["exported"])
        counted = metrics.registry.get_sample_value("job_supervisor_spans_total", {"outcome": "exported"})
        assert counted
        exemplars = [
            sample.exemplar.labels
            for family in metrics.registry.collect()
            if family.name == "job_supervisor_notice_to_directive_seconds"
            for sample in family.samples
            if sample.exemplar is not None
        ]
        ids = trace_of(served.job("small"), GroupOutcome.STOPPED)
    assert [each["trace_id"] for each in exemplars] == [str(ids)]
    assert [each["notice_id"] for each in exemplars] == ["metadata/n3/uid-n3"]


async def test_a_collector_that_is_down_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as gone:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{gone.address}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    async with started(tmp_path, traces="true") as running:
        agents = await running.peers.agents(["n2", "n3"])
        _, order = await running.peers.running("small", ["n2", "n3"])
        process = await running.peers.process(order["token"], "n2", rank=0)
        await agents["n3"].notices("n3", left=120.0)
        await process.reports("saved", await process.lines.matching(directive="STOP"), step=41)
        begun = time.monotonic()
        running.process.terminate()
        assert await running.ended() == 0
        assert time.monotonic() - begun < 10.0
        assert running.process.stderr is not None
        said = running.process.stderr.read().decode()
    assert "Traceback" not in said
    assert all(line.startswith("{") for line in said.splitlines())
    assert said.count("collector of traces") == 1


async def test_nothing_of_it_is_loaded_where_traces_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the variables of OpenTelemetry are set, and metrics and notices come and go."""
    for name, value in forbidding(tmp_path / "forbidden", "opentelemetry").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    async with started(tmp_path, metrics_address="127.0.0.1:0") as running:
        agents = await running.peers.agents(["n1"])
        await running.peers.running("job", ["n1"])
        await agents["n1"].notices("n1")
        running.process.terminate()
        assert await running.ended() == 0


async def test_nothing_listens_where_traces_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to the journal nor to directives."""

    def never(*_arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr("supervisor.observability.traces.follower.ReclaimTraces.__init__", never)
    async with serving(tmp_path) as served:
        await suspended(served)


async def test_a_missing_package_refuses_the_start_in_a_sentence(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        **forbidding(tmp_path / "forbidden", "opentelemetry"),
        PREFIX + "DATA_DIR": str(tmp_path),
        PREFIX + "TRACES": "true",
    }
    (tmp_path / "forbidden" / "opentelemetry.py").write_text("raise ModuleNotFoundError('No module')\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "supervisor", "serve", env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 78
    assert b"JOB_SUPERVISOR_TRACES: needs packages that are not installed: pip install" in errors
    assert b"Traceback" not in errors
