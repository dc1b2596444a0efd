"""The two threads that talk to the supervisor: one receives orders, the other delivers reports.

They decide nothing. They put events on the main thread's queue and take reports from the outbox.
"""

from __future__ import annotations

import ssl
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Mapping

from kubeai.elastic import threads, wire
from kubeai.elastic.threads import StderrLog

from .events import Confirmed, Event, LogMessage, Lost, Ordered, Rejected
from .exit_codes import ExitCode
from .failpoints import At, failpoint
from .orders import Job, MalformedOrder, Report, order_of

if TYPE_CHECKING:
    from pathlib import Path

    from .outbox import Outbox

_STREAM, _REPORT = "/v1/launchers/stream", "/v1/launchers/report"
# Refusals that the same registration would get again: malformed, wrong token, oversized.
_FINAL_REFUSALS = (400, 403, 413)
_OVERTAKE_SECONDS = 0.1
_NAME_IS_LIVE, _OLDER_REVISION, _UNKNOWN_JOB = "name_is_live", "older_revision", "unknown_job"


@dataclass(frozen=True)
class Supervisor:
    """The supervisor's address and our credentials. The token may be replaced, so it is read again for each call."""

    address: str
    token_file: Path
    ca: Path | None

    def endpoint(self) -> wire.CallAddress:
        """Read the token and return the endpoint.

        Raises:
            wire.Unreachable: The token cannot be read now.
        """
        try:
            return wire.CallAddress(self.address, self.token_file.read_text(encoding="utf-8").strip(), self.ca)
        except (OSError, ValueError) as error:
            raise wire.Unreachable(f"token: {error}") from error


class Link:
    """The connection to the supervisor.

    Args:
        supervisor: The supervisor to call.
        job: The request of the job.
        outbox: The reports to deliver.
        on_event: Called with every event, from both threads.
    """

    def __init__(self, supervisor: Supervisor, job: Job, outbox: Outbox, on_event: Callable[[Event], None]) -> None:
        self._supervisor = supervisor
        self._job = job
        self._outbox = outbox
        self._on_event = on_event
        self._instance = uuid.uuid4().hex
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._stream: wire.LineStream | None = None
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
        backoff = wire.ReconnectBackoff()
        while not self._stopped.is_set():
            try:
                self._follow(backoff)
                self._on_event(Lost("the supervisor ended the stream"))
            except wire.CallRefused as refusal:
                self._on_event(self._event_for(refusal))
            except wire.Unreachable as fault:
                self._on_event(Lost(_explained(fault)))
            finally:
                self._outbox.set_open(False)
            self._stopped.wait(backoff.next())

    def _event_for(self, refusal: wire.CallRefused) -> Event:
        if refusal.code == _NAME_IS_LIVE:
            return Rejected(ExitCode.NAME_IS_LIVE, refusal.message)
        # Once the job is registered, no refusal ends it: the supervisor's fault may be repaired.
        if refusal.status in _FINAL_REFUSALS and not self._is_registered:
            return Rejected(ExitCode.UNREACHED, str(refusal))
        return Lost(str(refusal))

    def _follow(self, backoff: wire.ReconnectBackoff) -> None:
        report = self._outbox.latest()
        is_registered = False
        hello = self._job.hello(self._instance, report)
        failpoint(At.HELLO_SENDING)
        with wire.open_stream(self._supervisor.endpoint(), _STREAM, hello) as stream:
            self._keep_stream(stream)
            for line in stream:
                if line.get("type") != "order":
                    continue
                if not is_registered:
                    is_registered = True
                    failpoint(At.HELLO_ANSWERED)
                    backoff.reset()
                    self._registered(report)
                self._apply_line(line)

    def _keep_stream(self, stream: wire.LineStream) -> None:
        with self._guard:
            self._stream = stream
        if self._stopped.is_set():
            stream.close()

    def _close_stream(self) -> None:
        with self._guard:
            stream = self._stream
        if stream is not None:
            stream.close()

    def _registered(self, report: Report) -> None:
        self._is_registered = True
        self._outbox.confirm(report)
        self._on_event(Confirmed(report))
        self._outbox.set_open(True)

    def _apply_line(self, line: Mapping[str, Any]) -> None:
        try:
            self._on_event(Ordered(order_of(line)))
        except MalformedOrder as fault:
            self._on_event(LogMessage(str(fault)))

    def _report_for_ever(self) -> None:
        backoff = wire.ReconnectBackoff()
        remarked = ""
        for report in iter(self._outbox.wait, None):
            trouble = self._deliver(report)
            if not trouble:
                backoff.reset()
            elif trouble != remarked:
                self._on_event(LogMessage(f"report: {trouble}"))
            remarked = trouble
            if trouble:
                self._stopped.wait(backoff.next())

    def _deliver(self, report: Report) -> str:
        """Post one report and return the error message, or "" on success."""
        body = {"job": self._job.name, "instance": self._instance, **report.fields()}
        failpoint(At.REPORT_SENDING)
        try:
            wire.post(self._supervisor.endpoint(), _REPORT, body)
        except wire.CallRefused as refusal:
            return self._handle_refusal(report, refusal)
        except wire.Unreachable as fault:
            return _explained(fault)
        failpoint(At.REPORT_ANSWERED)
        self._outbox.confirm(report)
        self._on_event(Confirmed(report))
        return ""

    def _handle_refusal(self, report: Report, refusal: wire.CallRefused) -> str:
        if refusal.code == _OLDER_REVISION:
            # A hello was faster. If there is no newer report by now, repeat this one with a higher revision.
            self._outbox.raise_revision(report)
            self._stopped.wait(_OVERTAKE_SECONDS)
            return ""
        if refusal.code == _NAME_IS_LIVE:
            self._on_event(Rejected(ExitCode.NAME_IS_LIVE, refusal.message))
        if refusal.code == _UNKNOWN_JOB:
            self._close_stream()
        return str(refusal)


def _explained(fault: wire.Unreachable) -> str:
    if isinstance(fault.__cause__, ssl.SSLCertVerificationError):
        remedy = "--ca-file must name the CA that signed it, and --supervisor must use a name in the certificate"
        return f"its certificate is not trusted: {remedy} ({fault})"
    return str(fault)
