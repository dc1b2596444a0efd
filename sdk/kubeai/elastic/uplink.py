"""This process's calls to the supervisor, and the meaning of each refusal."""

from __future__ import annotations

import contextlib
import http
import math
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import identity, wire
from .relay import SharedStream
from .version import __version__
from .wire import CallAddress, CallRefused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .messages import Directive, ProcessHello, ProcessReport
    from .spending import TimeSpent
    from .threads import StderrLog

_STREAM = "/v1/processes/stream"
_REPORT = "/v1/processes/report"
_SLOWEST_SECONDS = 5.0  # the longest back-off; a final refusal is retried forever at this pace
_QUIET_SECONDS = 15.0  # a restarting supervisor is back before we report its absence


class RunIsOver(Exception):  # noqa: N818 - the name describes the state
    """The run is over for the supervisor: stop calling."""


class NoIdentity(Unreachable):
    """The identity directory is incomplete: try again later."""


class ProcessUplink:
    """Calls the supervisor for one process of one run. The identity is read again for each call.

    Attributes:
        learned_run: The run that the supervisor has assigned. It is sent back if the identity directory names none.
        shared: This process's part in the relay.
    """

    def __init__(self, directory: Path, stderr: StderrLog) -> None:
        self._directory = directory
        self._process = os.urandom(16).hex()
        self._own_run: tuple[str | None, int | None] | None = None
        self._hellos = 0
        self.learned_run: int | None = None
        self.shared = SharedStream(self._relay_address, stderr)

    def open(self, hello: ProcessHello) -> wire.WireStream:
        """Open the stream. Raises RunIsOver, CallRefused or Unreachable."""
        own = self._identity()
        body = {"process": self._process, "host": host_name(), **hello.fields(), "pid": os.getpid(), "sdk": __version__}
        if own.run is None:
            body["run"] = self.learned_run
        # Each hello has a number: a relay that was given up may still pass an earlier one on.
        with _translated():
            self._hellos += 1
            shared = self.shared.open(own, _STREAM, {**body, "attempt": self._hellos})
            if shared is not None:
                return shared
            self._hellos += 1
            return wire.open_stream(
                CallAddress(own.address, own.token, own.ca), _STREAM, {**body, "attempt": self._hellos}
            )

    def report(self, report: ProcessReport, timeout: float = 5.0, spent: TimeSpent | None = None) -> None:
        """Post a report, with what the time was spent on so far, and return when it is confirmed.

        Raises as `open` does.
        """
        own = self._identity()
        run = self.learned_run if own.run is None else own.run
        body = {"process": self._process, "host": host_name(), **report.fields(), "run": run}
        if spent is not None:
            body["spent"] = spent.fields()
        with _translated():
            if not self.shared.post(_REPORT, body, timeout):
                wire.post(CallAddress(own.address, own.token, own.ca), _REPORT, body, timeout)

    def note_stop(self, directive: Directive) -> None:
        """Record a STOP in the identity directory, if that is writable.

        kubeai-run reads it if the command ends while the supervisor is away.
        """
        with contextlib.suppress(OSError):
            identity.write_atomically(self._directory / "stopped", f"{directive.run} {directive.generation}\n")

    def _relay_address(self) -> CallAddress:
        try:
            own = self._identity()
            return CallAddress(own.address, own.token, own.ca)
        except RunIsOver as error:
            raise CallRefused(http.HTTPStatus.CONFLICT, "run_is_over", "a later run has begun") from error

    def _identity(self) -> identity.RunIdentity:
        own = identity.read(self._directory)
        if own is None:
            raise NoIdentity(identity.absence(self._directory))
        run = (own.job, own.run)
        if self._own_run is None:
            self._own_run = run
        if self._own_run != run:
            # A process that outlives its run must not speak with the token of the next one.
            raise RunIsOver
        return own


@dataclass(eq=False)
class CallRetry:
    """Decides how long to wait after a failed call, and whether to print a message."""

    stderr: StderrLog
    backoff: wire.WireBackoff = field(default_factory=lambda: wire.WireBackoff(maximum=_SLOWEST_SECONDS))
    _was_reached: bool = False

    def was_reached(self, seconds: float = math.inf) -> None:
        """Record that a report was confirmed, or that a stream was open for `seconds`.

        A stream that was open shortly does not reset the back-off.
        """
        self._was_reached = True
        if seconds >= _SLOWEST_SECONDS:
            self.backoff.reset()

    def after(self, error: CallRefused | Unreachable, absent_seconds: float = 0.0) -> float:
        """Return the seconds to wait after an error. `absent_seconds` is how long the supervisor has been away."""
        if isinstance(error, CallRefused):
            may_pass = error.status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.NOT_FOUND) or error.status >= 500  # noqa: PLR2004
            if not may_pass:
                self.stderr.once(f"refused {error.code}", f"the supervisor refuses this process: {error}")
                return _SLOWEST_SECONDS
        if not self._was_reached or absent_seconds > _QUIET_SECONDS:
            self.stderr.once("absent", f"no supervisor: {error}. Training continues without warnings of reclaims")
        return self.backoff.next()


def is_unknown(error: CallRefused | Unreachable) -> bool:
    """Return whether the supervisor does not know this kind of report, because it is older. Repeating it is useless."""
    return isinstance(error, CallRefused) and error.code == "malformed"


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except CallRefused as error:
        if error.code == "run_is_over":
            raise RunIsOver from error
        raise


def host_name() -> str:
    """Return the name under which the supervisor knows this host."""
    # Horovod's name first: its processes have the launcher's environment, including HOSTNAME.
    return os.environ.get("HOROVOD_HOSTNAME") or os.environ.get("KUBEAI_HOST") or socket.gethostname()
