"""The thread that holds the stream: opens it, applies its lines, opens it again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .state import MalformedLine, parse
from .uplink import RetryPolicy, RunIsOver, Uplink
from .values import DirectiveKind
from .wire import Refused, Stream, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .monitor import Monitor
    from .stderr import StderrLog

_FIRST_RANK_SECONDS = 1.0  # a hello without a rank makes the supervisor think for a moment that rank 0 is unknown


class Listener:
    """Reads one stream after the other until the run is over."""

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
        """Listen; returns when the run is over, or after `close`."""
        self._monitor.wait_for_rank(_FIRST_RANK_SECONDS)
        try:
            while not self._is_closed:
                time.sleep(self._listen())
        except RunIsOver:
            self._monitor.end_run()

    def close(self) -> None:
        """Listen no longer, said by another thread: the supervisor hears of our end at once."""
        self._is_closed = True
        stream = self._stream
        if stream is not None:
            stream.close()

    def _listen(self) -> float:
        """Hold one stream as long as it lasts; seconds to wait before the next."""
        try:
            self._hold_stream()
        except (Refused, Unreachable) as error:
            return self._retry.after(error, time.monotonic() - self._heard_at)
        return self._retry.pause()

    def _hold_stream(self) -> None:
        rank = self._monitor.rank
        with self._uplink.open(rank, self._monitor.step) as stream:
            self._stream = stream
            opened_at = time.monotonic()
            self._monitor.stream_opened(rank)
            try:
                for message in stream:
                    self._handle(message)
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
            self._stderr.once("line", f"a directive that cannot be understood is ignored: {error}")
            return
        self._uplink.learn_run(line.directive.run)
        self._monitor.receive(line)
        if line.directive.kind is DirectiveKind.STOP and not self._has_noted_stop:
            self._has_noted_stop = True
            self._uplink.note_stop(line.directive)
