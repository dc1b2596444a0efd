"""Exports spans to a collector by OTLP over gRPC, in threads of its own: OpenTelemetry's SDK takes time for each span.

It is imported only where traces are on. The endpoint and all that belongs to it is read from OpenTelemetry's own
variables, such as OTEL_EXPORTER_OTLP_ENDPOINT.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from servicekit.bounds import one_line
from servicekit.clock import Clock
from servicekit.faults import Fault
from supervisor.observability.traces.spans import Attribute, TraceIds, TraceSpan

MAX_WAITING = 5_000
"""Spans that wait for the collector, about 20 MB: those of 500 stops."""

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_GRPC = "grpc"
_LAST_SECONDS = 2.0
"""How long the end of the process waits for the last spans."""

_PAUSE_SECONDS = 0.0002
"""After each span: a thread that computes lets the loop wait 5 ms each time for the interpreter."""
_BATCH = 64
"""Spans that are encoded in one go, for the same reason."""

_log = structlog.get_logger()


class TracesUnusableError(ValueError):
    """The variables of OpenTelemetry cannot be used; a person has to correct them."""


class OtlpExport:
    """Sends spans in batches. What a collector does not take is lost, and counted. The caller has to close it.

    Args:
        version: The version of this supervisor.
        instance: Its name; may be empty.
        clock: For the log.

    Raises:
        TracesUnusableError: A variable of OpenTelemetry cannot be used.
    """

    def __init__(self, version: str, instance: str, clock: Clock) -> None:
        # The variable for traces wins, and an empty one counts as unset.
        name = next((each for each in _PROTOCOLS if os.environ.get(each)), None)
        if name is not None and os.environ[name] != _GRPC:
            raise TracesUnusableError(f"{name} is {os.environ[name]!r}, and traces are sent by grpc only")
        if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            raise TracesUnusableError("OTEL_SDK_DISABLED is true, so that no trace would be sent")
        self._put = self._dropped = self._spoiled = 0
        self._queue, self._is_ending = SimpleQueue[TraceSpan | None](), threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._log, self._ids = _LibraryLog(), _GivenIds()
        own = {"service.name": "elastic-job-supervisor", "service.version": version}
        try:
            resource = Resource.create({**own, **({"service.instance.id": instance} if instance else {})})
            self._provider = TracerProvider(
                # What the variables say comes first.
                resource=resource.merge(OTELResourceDetector().detect()),
                sampler=ALWAYS_ON,
                id_generator=self._ids,
                shutdown_on_exit=False,
            )
            self._tracer = self._provider.get_tracer("elastic-job-supervisor", version)
            self._exporter = _CountedExporter(OTLPSpanExporter(), Fault("collector of traces", clock), self._log)
            processor = BatchSpanProcessor(self._exporter, max_queue_size=MAX_WAITING, max_export_batch_size=_BATCH)
            self._provider.add_span_processor(processor)
        except Exception as error:  # Whatever the parsers of the library raise.
            self._log.close()
            raise TracesUnusableError(f"a variable of OpenTelemetry cannot be used: {error}") from error
        self._thread.start()
        if self._log.last:  # A file that is missing, for example: the library would go on without it.
            why = self._log.last
            self.close()
            raise TracesUnusableError(why)

    def outcomes(self) -> Mapping[str, int]:
        """Implements `supervisor.observability.traces.spans.SpanExport`.

        Spans were exported, have failed (the collector did not take them), or were dropped (too many waited).
        """
        failed = self._exporter.failed + self._spoiled
        return {"exported": self._exporter.exported, "failed": failed, "dropped": self._dropped}

    def put(self, span: TraceSpan) -> None:
        """Implements `supervisor.observability.traces.spans.SpanExport`."""
        if self._put - self._exporter.taken - self._spoiled >= MAX_WAITING:
            self._dropped += 1
        else:
            self._put += 1
            self._queue.put(span)

    def close(self) -> None:
        """Sends what still waits, for two seconds at most. It blocks."""
        self._is_ending.set()
        self._queue.put(None)
        self._thread.join(_LAST_SECONDS / 2)
        self._exporter.shutdown()  # Ends an attempt that is under way, and with it the threads.
        self._thread.join(_LAST_SECONDS / 2)
        self._log.close()

    # What follows runs in the thread.

    def _run(self) -> None:
        for span in iter(self._queue.get, None):
            try:
                self._make(span)
            except Exception as error:  # noqa: BLE001 - one span spoils no other
                self._spoiled += 1
                if self._spoiled == 1:  # Whoever has caused it may cause a thousand.
                    _log.warning("traces.spoiled", span=span.name, why=type(error).__name__)
            self._is_ending.wait(_PAUSE_SECONDS)
        self._provider.shutdown()

    def _make(self, span: TraceSpan) -> None:
        self._ids.trace, self._ids.span = span.trace.trace, span.trace.root if span.root else None
        made = self._tracer.start_span(
            span.name,
            context=Context() if span.root else set_span_in_context(NonRecordingSpan(_root(span.trace)), Context()),
            attributes=_readable(span.attributes),
            links=[Link(_root(each)) for each in span.links],
            start_time=_nanoseconds(span.begins),
        )
        for event in span.events:
            made.add_event(event.name, _readable(event.attributes), _nanoseconds(event.at))
        if span.error:
            made.set_status(Status(StatusCode.ERROR, one_line(span.error)))
        made.end(_nanoseconds(span.ends))


class _CountedExporter(SpanExporter):
    """Counts what becomes of spans, and logs when the collector begins or ceases to fail. Its thread is the SDK's.

    Attributes:
        taken: The spans that have left the queue.
        exported: Those that the collector has taken.
        failed: Those that it has not.
    """

    def __init__(self, exporter: SpanExporter, fault: Fault, log: "_LibraryLog") -> None:
        self.taken = self.exported = self.failed = 0
        self._exporter = exporter
        self._fault = fault
        self._log = log
        self._is_shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - it costs this batch, and not the thread
            # Without its text: gRPC quotes the headers that it does not take, and these may be secret.
            result, self._log.last = SpanExportResult.FAILURE, f"the exporter raised {type(error).__name__}"
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
            self._fault.recovered()
        else:
            self.failed += len(spans)
            self._fault.failed(self._log.last or "it did not take spans")
        return result

    def shutdown(self) -> None:
        if not self._is_shut:
            self._is_shut = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _GivenIds(RandomIdGenerator):
    """Gives the next span the ids that are set here; a span without one gets a random one."""

    trace = 0
    span: int | None = None

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self.span is None else self.span


class _LibraryLog(logging.Handler):
    """Takes what OpenTelemetry logs, which would otherwise reach stderr as plain text at each attempt.

    Attributes:
        last: Its last error; empty if there was none.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = ""
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.last = one_line(record.getMessage())

    def close(self) -> None:
        self._logger.removeHandler(self)
        super().close()


def _readable(attributes: Mapping[str, Attribute]) -> Mapping[str, Attribute]:
    """Returns attributes whose texts, which may quote anybody, are bounded lines."""
    return {name: one_line(value) if isinstance(value, str) else value for name, value in attributes.items()}


def _root(ids: TraceIds) -> SpanContext:
    return SpanContext(ids.trace, ids.root, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
