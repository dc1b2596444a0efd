"""The two threads that talk to the supervisor: one reads the stream, the other reports this member's state."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from kubeai.elastic import identity, threads, wire
from kubeai.elastic.uplink import host_name

from .member import MalformedRendezvous, parse_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kubeai.elastic.threads import StderrLog

    from .member import Membership

_STREAM, _REPORT = "/v1/rendezvous/stream", "/v1/rendezvous/report"
# The supervisor takes a member that is silent for 3 s for a frozen one.
_HEARTBEAT_SECONDS = 1.0
_SILENCE_SECONDS = 15.0
_SLOWEST_SECONDS = 2.0


class MemberLink:
    """The connection of one member to its supervisor, from now on. The identity is read again for each call.

    Args:
        directory: The identity directory.
        membership: What is reported, and what lines are applied to.
        after_line: Called in the reading thread after each line.
        stderr: Where faults are written.
    """

    def __init__(
        self, directory: Path, membership: Membership, after_line: Callable[[], None], stderr: StderrLog
    ) -> None:
        self._directory = directory
        self._membership = membership
        self._after_line = after_line
        self._stderr = stderr
        self._run: int | None = None
        self._stream: wire.WireStream | None = None
        self._closed = threading.Event()
        self._posting = threading.Lock()
        self._connection = wire.PostConnection()
        self._revision = 0
        self.threads = [
            threads.start(f"rendezvous-{name}", run, stderr, closed=self._closed)
            for name, run in (("lines", self._follow_for_ever), ("reports", self._report_for_ever))
        ]
        """The threads, which end after `close`, or because a later run has begun."""

    def close(self) -> None:
        """Report the state once more, if the supervisor can be reached, and end the stream and both threads."""
        if not self._closed.is_set():
            with contextlib.suppress(wire.Unreachable, wire.CallRefused):
                self._report(timeout=2.0)
        self._closed.set()
        self._membership.wake()
        if self._stream is not None:
            self._stream.close()
        self._connection.close()

    def _follow_for_ever(self) -> None:
        backoff = wire.WireBackoff(maximum=_SLOWEST_SECONDS)
        while not self._closed.is_set():
            try:
                self._follow(backoff)
            except wire.CallRefused as refusal:
                if refusal.code == "run_is_over":
                    self._membership.end_run()
                    self._closed.set()
                self._stderr.once(f"refused {refusal.code}", f"the supervisor refuses this elastic agent: {refusal}")
            except wire.Unreachable as fault:
                if not self._closed.is_set():
                    self._stderr.once("absent", f"no supervisor: {fault}. Training continues without changes of hosts")
            finally:
                self._membership.set_absent(absent=True)
            self._closed.wait(backoff.next())

    def _follow(self, backoff: wire.WireBackoff) -> None:
        with wire.open_stream(self._endpoint(), _STREAM, self._body(), _SILENCE_SECONDS) as stream:
            self._stream = stream
            if self._closed.is_set():
                return
            opened_at = time.monotonic()
            self._membership.set_absent(absent=False)
            for message in stream:
                if message.get("type") == "rendezvous":
                    try:
                        line = parse_line(message)
                    except MalformedRendezvous as error:
                        self._stderr.once("line", f"ignoring a malformed line: {error}")
                    else:
                        self._run = line.run if self._run is None else self._run
                        self._membership.receive(line)
                        self._after_line()
                if time.monotonic() > opened_at + _SLOWEST_SECONDS:
                    backoff.reset()

    def _report_for_ever(self) -> None:
        while not self._closed.is_set():
            version = self._membership.version
            try:
                self._report()
            except (wire.CallRefused, wire.Unreachable):
                self._closed.wait(_HEARTBEAT_SECONDS / 4)  # the stream says what is wrong
            else:
                self._membership.wait_beyond(version, _HEARTBEAT_SECONDS)
        self._connection.close()  # a report that began during `close` has opened it again

    def _report(self, timeout: float = 5.0) -> None:
        with self._posting:
            if self._membership.absent_seconds:
                raise wire.Unreachable("there is no stream")
            self._revision += 1
            body = {**self._body(), "revision": self._revision}
            self._connection.post(self._endpoint(), _REPORT, body, timeout)

    def _body(self) -> dict[str, Any]:
        state = self._membership.state
        return {"member": state.member, "run": self._run, "host": host_name(), "state": state.fields()}

    def _endpoint(self) -> wire.CallAddress:
        own = identity.read(self._directory)
        if own is None:
            raise wire.Unreachable(identity.absence(self._directory))
        if self._run is None:
            self._run = own.run
        if own.run is not None and own.run != self._run:
            # An agent that outlives its run must not speak with the token of the next one.
            raise wire.CallRefused(409, "run_is_over", "a later run has begun")
        return wire.CallAddress(own.address, own.token, own.ca)
