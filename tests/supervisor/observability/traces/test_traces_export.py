"""Spans reach a real collector by OTLP, and one that is down or slow delays nothing."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme
from structlog.testing import capture_logs

from servicekit.clock import Clock
from servicekit.settings import SettingsError
from supervisor.observability.traces import export
from supervisor.observability.traces.export import OtlpExport
from supervisor.observability.traces.spans import SpanEvent, TraceSpan, trace_ids
from supervisor.settings import Settings
from supervisor.wiring.startup import open_traces
from tests.supervisor.decide.decide_builders import T0
from tests.supervisor.observability.traces.traces_world import attributes_of, collecting
from tests.testkit.waiting import wait_until

IDS, EARLIER = trace_ids("job", 1), trace_ids("job", 0)
Exports = Callable[[str], OtlpExport]


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exports]:
    """Makes exports that send at once, and closes them."""
    opened = list[OtlpExport]()
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")

    def to(endpoint: str) -> OtlpExport:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        opened.append(OtlpExport("1.2.3", "supervisor-0", Clock()))
        return opened[-1]

    yield to
    for each in opened:
        each.close()


def span(name: str = "decide", *, root: bool = False) -> TraceSpan:
    return TraceSpan(name=name, trace=IDS, root=root, begins=T0, ends=T0 + 1.5, attributes={"job_supervisor.job": "a"})


@contextmanager
def nowhere() -> Iterator[str]:
    """The address of a collector that has gone."""
    with collecting() as there:
        address = there.address
    yield address


def test_what_was_put_is_what_the_collector_reads(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab,service.version=ours")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret")
    with collecting() as there:
        out = exports(f"http://{there.address}")
        out.put(span())
        out.put(
            TraceSpan(
                name="reclaim",
                trace=IDS,
                root=True,
                begins=T0,
                ends=T0 + 9,
                attributes={"job_supervisor.subjects": ("n1", "n2"), "job_supervisor.drill": True},
                error="Nothing was saved.",
                events=[SpanEvent("notice withdrawn", T0 + 3, {"job_supervisor.source": "aws"})],
                links=[EARLIER],
            )
        )
        child, root = there.has(2)
        wait_until(lambda: out.outcomes() == {"exported": 2, "failed": 0, "dropped": 0})
        resource = attributes_of(there.resources[0].attributes)
        headers = there.headers[0]
    assert (child.name, root.name) == ("decide", "reclaim")
    assert int.from_bytes(child.trace_id) == int.from_bytes(root.trace_id) == IDS.trace
    assert root.trace_id.hex() == str(IDS)
    assert int.from_bytes(child.parent_span_id) == int.from_bytes(root.span_id) == IDS.root
    assert root.parent_span_id == b""
    assert child.span_id != root.span_id
    assert (child.start_time_unix_nano, child.end_time_unix_nano) == (int(T0 * 1e9), int((T0 + 1.5) * 1e9))
    assert attributes_of(child.attributes) == {"job_supervisor.job": "a"}
    assert attributes_of(root.attributes) == {"job_supervisor.subjects": ["n1", "n2"], "job_supervisor.drill": True}
    assert (child.status.code, root.status.code, root.status.message) == (0, 2, "Nothing was saved.")
    (event,), (link,) = root.events, root.links
    assert (event.name, event.time_unix_nano) == ("notice withdrawn", int((T0 + 3) * 1e9))
    assert (int.from_bytes(link.trace_id), int.from_bytes(link.span_id)) == (EARLIER.trace, EARLIER.root)
    assert resource["service.name"] == "elastic-job-supervisor"
    assert (resource["service.instance.id"], resource["service.version"]) == ("supervisor-0", "ours")
    assert resource["deployment.environment"] == "lab"
    assert headers["x-token"] == "secret"


def test_a_certificate_that_the_variables_name_is_trusted(
    exports: Exports, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    pairs = [(own.private_key_pem.bytes(), b"".join(each.bytes() for each in own.cert_chain_pems))]
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.crt"))
    with collecting(credentials=grpc.ssl_server_credentials(pairs)) as there:
        exports(f"https://{there.address}").put(span())
        there.has(1)


def test_what_still_waits_is_sent_at_the_end(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    with collecting() as there:
        out = exports(f"http://{there.address}")
        out.put(span())
        out.close()
        assert len(there.spans) == 1


def test_a_collector_that_is_down_is_said_once_and_counted(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it reaches stderr by itself, and spans are taken again once it is back."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with nowhere() as address, capture_logs() as said:
        out = exports(f"http://{address}")
        for number in range(3):
            out.put(span())
            wait_until(lambda wanted=number + 1: out.outcomes()["failed"] == wanted)  # type: ignore[misc]
        (line,) = said
        assert (line["event"], line["dependency"]) == ("dependency.failing", "collector of traces")
        assert "UNAVAILABLE" in line["reason"]
        assert address in line["reason"]

        def is_exported() -> bool:
            out.put(span())
            return out.outcomes()["exported"] > 0

        with collecting(address=address):
            wait_until(is_exported)
        # On a busy machine a later span may take longer than the 0.2 s.
        assert said[1]["event"] == "dependency.recovered"
    assert out.outcomes()["dropped"] == 0


def test_a_span_that_cannot_be_made_spoils_no_other(exports: Exports) -> None:
    with collecting() as there, capture_logs() as said:
        out = exports(f"http://{there.address}")
        out.put(replace(span(), ends=float("nan")))
        out.put(replace(span(), begins=float("inf")))
        out.put(replace(span(), attributes={"job_supervisor.reason": "two\nlines"}))
        (made,) = there.has(1)
        wait_until(lambda: out.outcomes() == {"exported": 1, "failed": 2, "dropped": 0})
    assert attributes_of(made.attributes) == {"job_supervisor.reason": "two lines"}
    assert [line["event"] for line in said] == ["traces.spoiled"]


def test_a_collector_that_hangs_costs_spans_and_no_time(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than may wait are dropped, and the end of the process does not wait for it."""
    monkeypatch.setattr(export, "MAX_WAITING", 512)
    monkeypatch.setattr(export, "_LAST_SECONDS", 0.1)
    asked, answers = threading.Event(), threading.Event()

    def hang(_context: grpc.ServicerContext) -> None:
        asked.set()
        answers.wait()

    with collecting(hang) as there:
        try:
            out = exports(f"http://{there.address}")
            out.put(span())
            assert asked.wait(60)
            for _ in range(600):
                out.put(span())
            assert out.outcomes() == {"exported": 0, "failed": 0, "dropped": 88}
            out.close()
            wait_until(lambda: out.outcomes()["failed"] == 513)
        finally:
            answers.set()


def test_headers_are_secret(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if gRPC does not take them, and says so."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=se%01same")
    with collecting() as there, capture_logs() as said:
        out = exports(f"http://{there.address}")
        out.put(span())
        wait_until(lambda: out.outcomes()["failed"])
    (line,) = said
    assert "metadata" in line["reason"]
    assert "same" not in str(said)


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "sent by grpc only"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'http/json'"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "soon"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "OTEL_EXPORTER_OTLP_COMPRESSION"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/does/not/exist", "/does/not/exist"),
        ("OTEL_SDK_DISABLED", "True", "no trace would be sent"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
        ("OTEL_BSP_SCHEDULE_DELAY", "often", "OTEL_BSP_SCHEDULE_DELAY"),
    ],
)
def test_a_variable_that_cannot_be_used_refuses_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=why) as refused:
        open_traces(Settings(traces=True), Clock())
    assert refused.value.variable == "JOB_SUPERVISOR_TRACES"
