"""This process's calls to the supervisor: who we are, and what each refusal means."""

from __future__ import annotations

import contextlib
import http
import os
import socket
from typing import TYPE_CHECKING, Any

from . import identity, wire
from .version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .monitor import Report
    from .stderr import StderrLog
    from .values import Directive

_STREAM = "/v1/processes/stream"
_REPORT = "/v1/processes/report"
_SLOWEST_SECONDS = 5.0  # as the longest back-off: what was refused for good is asked again for ever, but seldom
_QUIET_SECONDS = 15.0  # as the wire's silence: a supervisor that restarts is back before anybody is told of it


class RunIsOver(Exception):  # noqa: N818 - named for what it means
    """The supervisor has no more to say to this run: stop calling."""


class NotConfigured(wire.Unreachable):
    """The identity directory does not say whom to call: look again later."""


class Uplink:
    """Speaks for one process of one run, whose identity is read again at each call."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = os.urandom(16).hex()
        self._own_run: tuple[str | None, int | None] | None = None
        self._learned_run: int | None = None

    def open(self, rank: int | None, step: int | None) -> wire.Stream:
        """Say hello. Raises RunIsOver, wire.Refused or wire.Unreachable."""
        own = self._identity()
        hello = {**self._common_fields(), "rank": rank, "pid": os.getpid(), "step": step, "sdk": __version__}
        if own.run is None:
            hello["run"] = self._learned_run
        with _translated():
            return wire.open_stream(_endpoint(own), _STREAM, hello)

    def report(self, report: Report, timeout: float = 5.0) -> None:
        """Post a report; returns when it is confirmed. Raises as `open` does."""
        own = self._identity()
        body = {
            **self._common_fields(),
            "kind": report.kind.value,
            "rank": report.rank,
            "step": report.step,
            "run": self._learned_run if own.run is None else own.run,
            "generation": report.generation,
        }
        with _translated():
            wire.post(_endpoint(own), _REPORT, body, timeout)

    def learn_run(self, run: int) -> None:
        """Note which run the supervisor takes this process for: where only it knows, it is said back from now on."""
        if self._learned_run is None:
            self._learned_run = run

    def note_stop(self, directive: Directive) -> None:
        """Leave word in the identity directory that a STOP has arrived, where it can be written.

        kubeai-run reads it when the command ends while the supervisor is away.
        """
        with contextlib.suppress(OSError):
            identity.write_atomically(self._directory / "stopped", f"{directive.run} {directive.generation}\n")

    def _common_fields(self) -> dict[str, Any]:
        return {"process": self._process, "host": _host()}

    def _identity(self) -> identity.Identity:
        own = identity.read(self._directory)
        if own is None:
            raise NotConfigured(f"none is configured in {self._directory}")
        run = (own.job, own.run)
        if self._own_run is None:
            self._own_run = run
        if self._own_run != run:
            # A process that outlives its run must not speak with the token of the next one.
            raise RunIsOver
        return own


class RetryPolicy:
    """How long to wait after a failed call, and whether to say so."""

    def __init__(self, stderr: StderrLog) -> None:
        self._stderr = stderr
        self._backoff = wire.Backoff(maximum=_SLOWEST_SECONDS)
        self._was_reached = False

    def was_reached(self, seconds: float) -> None:
        """A stream was open for so long. A short one does not make the next attempts come faster."""
        self._was_reached = True
        if seconds >= _SLOWEST_SECONDS:
            self._backoff.reset()

    def after(self, error: wire.Refused | wire.Unreachable, absent_seconds: float = 0.0) -> float:
        """Seconds to wait now; `absent_seconds` is how long the supervisor has been away."""
        if isinstance(error, wire.Refused) and not _may_pass(error):
            self._stderr.once(f"refused {error.code}", f"the supervisor refuses this process: {error}")
            return _SLOWEST_SECONDS
        if not self._was_reached or absent_seconds > _QUIET_SECONDS:
            self._stderr.once("absent", f"no supervisor: {error}. Training goes on, unwarned of reclaims")
        return self.pause()

    def pause(self) -> float:
        """Seconds to wait after a stream that ended in order."""
        return self._backoff.next()


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


def _host() -> str:
    # Horovod's name first: its processes run with the launcher's environment, HOSTNAME included.
    return os.environ.get("HOROVOD_HOSTNAME") or os.environ.get("KUBEAI_HOST") or socket.gethostname()
