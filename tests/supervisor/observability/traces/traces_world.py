"""A job's life told to traces, and a collector that takes spans by OTLP."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from supervisor.decide.urgency import NodeIdentities, binds
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.domain.order import ProcessDirective, ProcessDirectiveKind
from supervisor.observability.journal import Change, JobChanged, NoticeChanged
from supervisor.observability.traces.follower import ReclaimTraces
from supervisor.observability.traces.spans import TraceSpan
from tests.supervisor.decide.decide_builders import POLICY, T0, decide, noticed, seeing
from tests.testkit.waiting import PATIENCE


class TracedLife:
    """A job and the notices on its hosts, told to the traces of one leader after another. Instants count from `T0`."""

    def __init__(self, job: SupervisedJob, placements: Mapping[Host, Placement] | None = None) -> None:
        self.job = job
        self.placements = placements
        self.noticed: dict[Host, ReclaimNotice] = {}
        self.identities = NodeIdentities()
        self.spans: list[TraceSpan] = []
        self.at = 0.0
        self.traces = self._led()

    def now(self) -> float:
        return T0 + self.at

    def of(self, _name: JobName) -> Mapping[Host, ReclaimNotice]:
        return self.noticed

    def another_leads(self, at: float, *others: ReclaimNotice) -> None:
        """From then on, with what is stored; `others` are notices besides the most urgent ones."""
        self.at = at
        self.traces = self._led()
        self.traces.begin((*self.noticed.values(), *others))
        self.traces.take_over(self.job)

    def _led(self) -> ReclaimTraces:
        return ReclaimTraces(
            self.spans.append,
            self.of,
            lambda notice: binds(notice, self.identities),
            lambda _job: self.placements,
            POLICY,
            self.now,
        )

    def hears(self, change: Change) -> None:
        self.traces.on_change(change)

    def announced(self, *notices: ReclaimNotice, at: float = 0.0) -> None:
        """Stored at that time."""
        self.noticed = {**self.noticed, **noticed(*notices)}
        for each in notices:
            self.hears(NoticeChanged(None, each, T0 + at))

    def becomes(self, job: SupervisedJob, at: float) -> None:
        before, self.job, self.at = self.job, job, at
        self.hears(JobChanged(before, job, T0 + at))

    def decided(self, at: float) -> None:
        """As `plan` would."""
        self.becomes(decide(self.job, seeing(self.noticed), at).job, at)

    def told(self, kind: ProcessDirectiveKind, generation: int, at: float) -> None:
        self.at = at
        directive = ProcessDirective(kind=kind, run=1, generation=generation, reason="It must.")
        self.traces.on_directives_sent(self.job.name, [directive])

    def story(self) -> list[tuple[str, float, float]]:
        """The spans in their order, with their beginnings and ends."""
        return [(span.name, round(span.begins - T0, 3), round(span.ends - T0, 3)) for span in self.spans]

    def only(self, name: str) -> TraceSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span


def value_of(value: AnyValue) -> Any:
    """The value of an attribute, as Python has it."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)


def attributes_of(values: Sequence[KeyValue]) -> dict[str, Any]:
    return {each.key: value_of(each.value) for each in values}


@dataclass(eq=False)
class Collector(TraceServiceServicer):
    """Keeps what it is sent; `answer` is called for each request before it answers."""

    answer: Callable[[grpc.ServicerContext], None] = lambda _context: None
    address: str = ""
    spans: list[Span] = field(default_factory=list)
    resources: list[Resource] = field(default_factory=list)
    headers: list[dict[str, str | bytes]] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:  # noqa: N802
        self.answer(context)
        with self._news:
            self.headers.append(dict(context.invocation_metadata()))
            for each in request.resource_spans:
                self.resources.append(each.resource)
                self.spans.extend(span for scope in each.scope_spans for span in scope.spans)
            self._news.notify_all()
        return ExportTraceServiceResponse()

    def has(self, count: int) -> Sequence[Span]:
        """Waits for so many spans."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.spans) >= count, PATIENCE)
            return tuple(self.spans)


@contextmanager
def collecting(
    answer: Callable[[grpc.ServicerContext], None] = lambda _context: None,
    address: str = "127.0.0.1:0",
    credentials: grpc.ServerCredentials | None = None,
) -> Iterator[Collector]:
    """Runs a collector."""
    collector = Collector(answer)
    with ThreadPoolExecutor(max_workers=2) as threads:
        server = grpc.server(threads)
        add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
        collector.address = f"127.0.0.1:{port}"
        server.start()
        try:
            yield collector
        finally:
            server.stop(0).wait()
