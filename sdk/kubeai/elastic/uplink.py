"""This process's calls to the supervisor, and the meaning of each refusal."""

from __future__ import annotations

import contextlib
import http
import os
import socket
from typing import TYPE_CHECKING, Any

from . import identity, wire
from .share import Share
from .version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .messages import Hello, Report
    from .stderr import StderrLog
    from .values import Directive

_STREAM = "/v1/processes/stream"
_REPORT = "/v1/processes/report"
_SLOWEST_SECONDS = 5.0  # the longest back-off; a final refusal is retried forever at this pace
_QUIET_SECONDS = 15.0  # a restarting supervisor is back before we report its absence


class RunIsOver(Exception):  # noqa: N818 - the name describes the state
    """The run is over for the supervisor: stop calling."""


class NotConfigured(wire.Unreachable):
    """The identity directory is incomplete: try again later."""


class Uplink:
    """Calls the supervisor for one process of one run. The identity is read again for each call."""

    def __init__(self, directory: Path, stderr: StderrLog) -> None:
        self._directory = directory
        self._process = os.urandom(16).hex()
        self._own_run: tuple[str | None, int | None] | None = None
        self._learned_run: int | None = None
        self._hellos = 0
        self._share = Share(self._relay_endpoint, stderr)

    def open(self, hello: Hello) -> wire.Stream:
        """Open the stream. Raises RunIsOver, wire.Refused or wire.Unreachable."""
        own = self._identity()
        body = {**self._common_fields(), **hello.fields(), "pid": os.getpid(), "sdk": __version__}
        if own.run is None:
            body["run"] = self._learned_run
        with _translated():
            shared = self._share.open(own, _STREAM, self._numbered(body))
            return shared or wire.open_stream(_endpoint(own), _STREAM, self._numbered(body))

    def _numbered(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the next hello: a relay that was given up may still pass an earlier one on."""
        self._hellos += 1
        return {**body, "attempt": self._hellos}

    def report(self, report: Report, timeout: float = 5.0) -> None:
        """Post a report and return when it is confirmed. Raises as `open` does."""
        own = self._identity()
        run = self._learned_run if own.run is None else own.run
        body = {**self._common_fields(), **report.fields(), "run": run}
        with _translated():
            if not self._share.post(_REPORT, body, timeout):
                wire.post(_endpoint(own), _REPORT, body, timeout)

    def close(self) -> None:
        """Stop relaying for other processes. Callable from another thread."""
        self._share.close()

    def learn_run(self, run: int) -> None:
        """Remember the run that the supervisor assigned. It is sent back if the identity directory names none."""
        if self._learned_run is None:
            self._learned_run = run

    def note_stop(self, directive: Directive) -> None:
        """Record a STOP in the identity directory, if that is writable.

        kubeai-run reads it if the command ends while the supervisor is away.
        """
        with contextlib.suppress(OSError):
            identity.write_atomically(self._directory / "stopped", f"{directive.run} {directive.generation}\n")

    def _relay_endpoint(self) -> wire.Endpoint:
        try:
            return _endpoint(self._identity())
        except RunIsOver as error:
            raise wire.Refused(http.HTTPStatus.CONFLICT, "run_is_over", "a later run has begun") from error

    def _common_fields(self) -> dict[str, Any]:
        return {"process": self._process, "host": host_name()}

    def _identity(self) -> identity.Identity:
        own = identity.read(self._directory)
        if own is None:
            raise NotConfigured(identity.absence(self._directory))
        run = (own.job, own.run)
        if self._own_run is None:
            self._own_run = run
        if self._own_run != run:
            # A process that outlives its run must not speak with the token of the next one.
            raise RunIsOver
        return own


class RetryPolicy:
    """Decides how long to wait after a failed call, and whether to print a message."""

    def __init__(self, stderr: StderrLog) -> None:
        self._stderr = stderr
        self._backoff = wire.Backoff(maximum=_SLOWEST_SECONDS)
        self._was_reached = False

    def was_reached(self, seconds: float) -> None:
        """Record that a stream was open for `seconds`. A short one does not reset the back-off."""
        self._was_reached = True
        if seconds >= _SLOWEST_SECONDS:
            self._backoff.reset()

    def delivered(self) -> None:
        """Record that a report was confirmed."""
        self._was_reached = True
        self._backoff.reset()

    def after(self, error: wire.Refused | wire.Unreachable, absent_seconds: float = 0.0) -> float:
        """Return the seconds to wait after an error. `absent_seconds` is how long the supervisor has been away."""
        if isinstance(error, wire.Refused) and not _may_pass(error):
            self._stderr.once(f"refused {error.code}", f"the supervisor refuses this process: {error}")
            return _SLOWEST_SECONDS
        if not self._was_reached or absent_seconds > _QUIET_SECONDS:
            self._stderr.once("absent", f"no supervisor: {error}. Training continues without warnings of reclaims")
        return self.pause()

    def pause(self) -> float:
        """Return the seconds to wait after a stream that ended cleanly."""
        return self._backoff.next()


def is_unknown(error: wire.Refused | wire.Unreachable) -> bool:
    """Return whether the supervisor does not know this kind of report, because it is older. Repeating it is useless."""
    return isinstance(error, wire.Refused) and error.code == "malformed"


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except wire.Refused as error:
        if error.code == "run_is_over":
            raise RunIsOver from error
        raise


def _may_pass(error: wire.Refused) -> bool:
    return error.status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.NOT_FOUND) or error.status >= 500  # noqa: PLR2004


def _endpoint(own: identity.Identity) -> wire.Endpoint:
    return wire.Endpoint(own.address, own.token, own.ca)


def host_name() -> str:
    """Return the name under which the supervisor knows this host."""
    # Horovod's name first: its processes have the launcher's environment, including HOSTNAME.
    return os.environ.get("HOROVOD_HOSTNAME") or os.environ.get("KUBEAI_HOST") or socket.gethostname()
