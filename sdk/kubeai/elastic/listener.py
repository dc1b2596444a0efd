"""The thread that holds the stream: it opens it, applies its lines and reopens it."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from . import threads
from .agreement import Purpose
from .state import MalformedLine, parse
from .uplink import RetryPolicy, RunIsOver, Uplink
from .values import DirectiveKind
from .wire import Refused, Stream, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .monitor import Monitor
    from .stderr import StderrLog

_FIRST_RANK_SECONDS = 1.0  # without a rank in the hello, the supervisor would briefly not know rank 0


class Listener:
    """Reads one stream after another until the run is over."""

    def __init__(self, monitor: Monitor, uplink: Uplink, stderr: StderrLog) -> None:
        self._monitor = monitor
        self._uplink = uplink
        self._stderr = stderr
        self._retry = RetryPolicy(stderr)
        self._heard_at = time.monotonic()
        self._stream: Stream | None = None
        self._is_closed = False
        self._has_noted_stop = False

    def run(self) -> None:
        """Listen until the run is over or `close` is called."""
        self._monitor.wait_for_rank(_FIRST_RANK_SECONDS)
        try:
            while not self._is_closed:
                time.sleep(self._listen())
        except RunIsOver:
            self._monitor.end_run()

    def close(self) -> None:
        """Stop listening. Callable from another thread; the supervisor sees the disconnect at once."""
        self._is_closed = True
        stream = self._stream
        if stream is not None:
            stream.close()

    def _listen(self) -> float:
        """Read one stream to its end and return the seconds to wait before the next."""
        try:
            self._hold_stream()
        except (Refused, Unreachable) as error:
            return self._retry.after(error, time.monotonic() - self._heard_at)
        return self._retry.pause()

    def _hold_stream(self) -> None:
        hello = self._monitor.hello()
        with self._uplink.open(hello) as stream:
            self._stream = stream
            opened_at = time.monotonic()
            self._monitor.stream_opened(hello.member)
            try:
                for message in stream:
                    threads.attempt("a line of the supervisor", self._stderr, functools.partial(self._handle, message))
            finally:
                self._monitor.stream_ended()
                self._heard_at = time.monotonic()
                self._retry.was_reached(self._heard_at - opened_at)

    def _handle(self, message: Mapping[str, Any]) -> None:
        if message.get("type") != "directive":
            return
        try:
            line = parse(message)
        except MalformedLine as error:
            self._stderr.once("line", f"ignoring a malformed directive: {error}")
            return
        self._uplink.learn_run(line.directive.run)
        self._monitor.receive(line)
        # A launcher must not take a later failure for the stop of a job that goes on in another round.
        goes_on = line.agreement is not None and line.agreement.purpose is Purpose.RENDEZVOUS
        if line.directive.kind is DirectiveKind.STOP and not goes_on and not self._has_noted_stop:
            self._has_noted_stop = True
            self._uplink.note_stop(line.directive)
