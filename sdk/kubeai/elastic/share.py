"""This process's part in sharing one stream with the other processes of its pod or machine.

Whatever goes wrong with a relay, the process holds a stream of its own, until it has to open one again.
"""

from __future__ import annotations

import os
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from . import local, wire
from .relay import UNREACHABLE, Relay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .identity import Identity
    from .stderr import StderrLog

_ATTEMPTS = 10
_BETWEEN_SECONDS = 0.02  # while a relay has taken the name and does not listen yet, or is dying


class Share:
    """Calls the relay, and becomes the relay if there is none. `endpoint` is that of the relay's own calls."""

    def __init__(self, endpoint: Callable[[], wire.Endpoint], stderr: StderrLog) -> None:
        self._endpoint = endpoint
        self._stderr = stderr
        self._is_wanted = os.environ.get("KUBEAI_RELAY") != "0"
        self._relay: Relay | None = None
        self._stream: wire.Stream | None = None
        self._there = wire.Endpoint("", "")

    def open(self, own: Identity, path: str, hello: Mapping[str, Any]) -> wire.Stream | None:
        """Open a stream through the relay; None: hold a stream of its own. Raises wire.Refused or wire.Unreachable."""
        before, self._stream = self._stream, None
        # A relay that was silent may be stopped, while the kernel still accepts connections for it.
        if self._is_wanted and not (before is not None and before.was_silent):
            self._stream = self._open(own, path, hello)
        return self._stream

    def post(self, path: str, body: Mapping[str, Any], timeout: float) -> bool:
        """Post through the relay if the stream goes through it, and return whether that was done. Raises as `open`."""
        if self._stream is None or self._stream.is_closed:
            return False
        try:
            wire.post(self._there, path, body, timeout)
        except wire.Refused as error:
            _raise_unless_unknown(error)
            return False
        except wire.Unreachable:
            self._stream = None
            return False
        return True

    def close(self) -> None:
        """Stop relaying: the other processes find another relay at once."""
        if self._relay is not None:
            self._relay.close()

    def _open(self, own: Identity, path: str, hello: Mapping[str, Any]) -> wire.Stream | None:
        try:
            self._there = wire.Endpoint(local.SCHEME + local.name_of(own), "")
        except OSError:
            return None
        for _ in range(_ATTEMPTS):
            self._become_relay()
            try:
                return wire.open_stream(self._there, path, hello)
            except wire.Refused as error:
                _raise_unless_unknown(error)
                return None
            except wire.Unreachable as error:
                if not isinstance(error.__cause__, ConnectionError):
                    return None
            time.sleep(_BETWEEN_SECONDS)
        return None

    def _become_relay(self) -> None:
        if self._relay is not None:
            return
        try:
            listener = local.listen(self._there.address[len(local.SCHEME) :])
        except OSError:
            return  # another process is the relay
        relay = Relay(listener, self._endpoint, self._stderr)
        try:
            relay.start()
        except RuntimeError:  # this process is exiting
            relay.close()
        else:
            self._relay = relay


def _raise_unless_unknown(error: wire.Refused) -> None:
    """Raise what the supervisor has answered through the relay, unless it is that it knows no relays."""
    if error.code == UNREACHABLE:
        raise wire.Unreachable(error.message) from error
    if error.status != HTTPStatus.NOT_FOUND or error.code == "unknown_job":
        raise error
