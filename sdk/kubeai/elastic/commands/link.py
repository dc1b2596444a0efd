"""The connection of kubeai-run to the supervisor: the latest report, and two threads.

One thread receives orders, the other delivers reports. They decide nothing. They put events on the main thread's queue
and take reports from the outbox.
"""

from __future__ import annotations

import ssl
import threading
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Callable

from kubeai.elastic import threads, wire
from kubeai.elastic.threads import StderrLog

from .failpoints import RunFailpoint, failpoint
from .orders import (
    Confirmed,
    JobRequest,
    LogMessage,
    Lost,
    MalformedOrder,
    Ordered,
    Rejected,
    RunExitCode,
    RunnerEvent,
    RunReport,
    order_of,
)

if TYPE_CHECKING:
    from pathlib import Path

_STREAM, _REPORT = "/v1/launchers/stream", "/v1/launchers/report"
# Refusals that the same registration would get again: malformed, wrong token, oversized.
_FINAL_REFUSALS = (400, 403, 413)
_OVERTAKE_SECONDS = 0.1
_NAME_IS_LIVE, _OLDER_REVISION, _UNKNOWN_JOB = "name_is_live", "older_revision", "unknown_job"


@dataclass(frozen=True)
class SupervisorAccess:
    """The supervisor's address and our credentials. The token may be replaced, so it is read again for each call."""

    address: str
    token_file: Path
    ca: Path | None

    def address_now(self) -> wire.CallAddress:
        """Read the token and return where to call.

        Raises:
            wire.Unreachable: The token cannot be read now.
        """
        try:
            return wire.CallAddress(self.address, self.token_file.read_text(encoding="utf-8").strip(), self.ca)
        except (OSError, ValueError) as error:
            raise wire.Unreachable(f"token: {error}") from error


@dataclass(eq=False)
class RunReportOutbox:
    """Keeps the latest report until the supervisor has confirmed it: the main thread publishes, the others deliver."""

    latest: RunReport = field(default_factory=lambda: RunReport(revision=1))
    _confirmed: int = 0
    _open: bool = False
    _closed: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def publish(self, report: RunReport) -> None:
        """Make this the latest report. If it differs from the present one, it gets the next revision."""
        with self._changed:
            if report != replace(self.latest, revision=report.revision):
                self.latest = replace(report, revision=self.latest.revision + 1)
                self._changed.notify_all()

    def confirm(self, report: RunReport) -> None:
        """Record that the supervisor has confirmed this report."""
        with self._changed:
            self._confirmed = max(self._confirmed, report.revision)

    def raise_revision(self, report: RunReport) -> None:
        """Raise the revision of this report if it is still the latest. The supervisor knows a higher revision."""
        with self._changed:
            if self.latest.revision == report.revision:
                self.latest = replace(report, revision=report.revision + 1)

    def set_open(self, is_open: bool) -> None:  # noqa: FBT001 - the argument is the state to set.
        """Let ``wait`` return reports only while a stream is open, because every hello contains the whole report."""
        with self._changed:
            self._open = is_open
            self._changed.notify_all()

    def close(self) -> None:
        """Make every ``wait`` return None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self) -> RunReport | None:
        """Block until there is a report to deliver. Returns None once the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._open and self.latest.revision > self._confirmed))
            return None if self._closed else self.latest


class LauncherLink:
    """The connection to the supervisor.

    Args:
        supervisor: The supervisor to call.
        job: The request of the job.
        outbox: The reports to deliver.
        on_event: Called with every event, from both threads.
    """

    def __init__(
        self,
        supervisor: SupervisorAccess,
        job: JobRequest,
        outbox: RunReportOutbox,
        on_event: Callable[[RunnerEvent], None],
    ) -> None:
        self._supervisor = supervisor
        self._job = job
        self._outbox = outbox
        self._on_event = on_event
        self._instance = uuid.uuid4().hex
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._stream: wire.WireStream | None = None
        self._is_registered = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start both threads."""
        stderr = StderrLog()
        for name, run in (("orders", self._follow_for_ever), ("reports", self._report_for_ever)):
            self._threads.append(threads.start(name, run, stderr, closed=self._stopped))

    def stop(self, timeout: float) -> None:
        """Stop both threads. Waits at most `timeout` seconds for a thread that is inside a call."""
        self._stopped.set()
        self._outbox.close()
        self._close_stream()
        for thread in self._threads:
            thread.join(timeout)

    def _follow_for_ever(self) -> None:
        backoff = wire.WireBackoff()
        while not self._stopped.is_set():
            try:
                self._follow(backoff)
                self._on_event(Lost("the supervisor ended the stream"))
            except wire.CallRefused as refusal:
                if refusal.code == _NAME_IS_LIVE:
                    self._on_event(Rejected(RunExitCode.NAME_IS_LIVE, refusal.message))
                # Once the job is registered, no refusal ends it: the supervisor's fault may be repaired.
                elif refusal.status in _FINAL_REFUSALS and not self._is_registered:
                    self._on_event(Rejected(RunExitCode.UNREACHED, str(refusal)))
                else:
                    self._on_event(Lost(str(refusal)))
            except wire.Unreachable as fault:
                self._on_event(Lost(_explained(fault)))
            finally:
                self._outbox.set_open(False)
            self._stopped.wait(backoff.next())

    def _follow(self, backoff: wire.WireBackoff) -> None:
        report = self._outbox.latest
        is_registered = False
        hello = self._job.hello(self._instance, report)
        failpoint(RunFailpoint.HELLO_SENDING)
        with wire.open_stream(self._supervisor.address_now(), _STREAM, hello) as stream:
            with self._guard:
                self._stream = stream
            if self._stopped.is_set():
                stream.close()
            for line in stream:
                if line.get("type") != "order":
                    continue
                if not is_registered:
                    is_registered = self._is_registered = True
                    failpoint(RunFailpoint.HELLO_ANSWERED)
                    backoff.reset()
                    self._outbox.confirm(report)
                    self._on_event(Confirmed(report))
                    self._outbox.set_open(True)
                try:
                    self._on_event(Ordered(order_of(line)))
                except MalformedOrder as fault:
                    self._on_event(LogMessage(str(fault)))

    def _close_stream(self) -> None:
        with self._guard:
            stream = self._stream
        if stream is not None:
            stream.close()

    def _report_for_ever(self) -> None:
        backoff = wire.WireBackoff()
        remarked = ""
        for report in iter(self._outbox.wait, None):
            trouble = self._deliver(report)
            if trouble:
                if trouble != remarked:
                    self._on_event(LogMessage(f"report: {trouble}"))
                self._stopped.wait(backoff.next())
            else:
                backoff.reset()
            remarked = trouble

    def _deliver(self, report: RunReport) -> str:
        """Post one report and return the error message, or "" on success."""
        body = {"job": self._job.name, "instance": self._instance, **report.fields()}
        failpoint(RunFailpoint.REPORT_SENDING)
        try:
            wire.post(self._supervisor.address_now(), _REPORT, body)
        except wire.CallRefused as refusal:
            return self._handle_refusal(report, refusal)
        except wire.Unreachable as fault:
            return _explained(fault)
        failpoint(RunFailpoint.REPORT_ANSWERED)
        self._outbox.confirm(report)
        self._on_event(Confirmed(report))
        return ""

    def _handle_refusal(self, report: RunReport, refusal: wire.CallRefused) -> str:
        if refusal.code == _OLDER_REVISION:
            # A hello was faster. If there is no newer report by now, repeat this one with a higher revision.
            self._outbox.raise_revision(report)
            self._stopped.wait(_OVERTAKE_SECONDS)
            return ""
        if refusal.code == _NAME_IS_LIVE:
            self._on_event(Rejected(RunExitCode.NAME_IS_LIVE, refusal.message))
        if refusal.code == _UNKNOWN_JOB:
            self._close_stream()
        return str(refusal)


def _explained(fault: wire.Unreachable) -> str:
    if isinstance(fault.__cause__, ssl.SSLCertVerificationError):
        remedy = "--ca-file must name the CA that signed it, and --supervisor must use a name in the certificate"
        return f"its certificate is not trusted: {remedy} ({fault})"
    return str(fault)
