"""Speaks with state keepers, which hold parts of a state in the memory of hosts that stay while a job is stopped.

A state keeper is a small server of a host. A process has the address of its own one in KUBEAI_KEEPER, and is known to
it by its token. Whoever knows the name of a state, which is random, can read it from any host.

Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Tuple, Union

from kubeai.elastic import identity
from kubeai.elastic.identity import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    _Buffer = Union[bytes, bytearray, memoryview]

_ADDRESS = "KUBEAI_KEEPER"
_CONNECT_SECONDS, _SILENT_SECONDS = 3.0, 10.0
_MAX_ANSWER = 4096
_CREATED, _OK = 201, 200
_SHORTEST_SECONDS = 0.001
"""For which something can be kept: three digits are sent, and a keeper refuses 0."""
_NOTE = "kept.json"
_VERSION = 1
_MAX_NOTE = 64 << 20
_MAX_TEXT = 300


class KeeperFailed(OSError):  # noqa: N818 - it names what happened
    """A state keeper cannot be reached, has refused, or has not what is asked for."""


@dataclass(frozen=True)
class KeeperRoom:
    """Says what a state keeper would take.

    Attributes:
        size: How many more bytes it keeps for this job's namespace.
        seconds: For how long it keeps anything, at most.
    """

    size: int
    seconds: float

    def kept_for(self, wait: float | None) -> float:
        """Return for how many seconds it would keep a state; 0 if that is not worth it.

        Args:
            wait: How long the job waits to be resumed, None if for any time.
        """
        return max(0.0, self.seconds if wait is None else min(self.seconds, wait))


@dataclass(frozen=True)
class KeptPart:
    """Says where a part is.

    Attributes:
        keeper: The address of its state keeper.
        digest: The SHA-256 of all of the part but its rows, in hexadecimal digits.
    """

    keeper: str
    digest: str


@dataclass(frozen=True)
class KeptState:
    """A state in the memory of hosts.

    Attributes:
        step: The number of finished steps.
        name: 64 hexadecimal digits. Whoever knows them can read the state.
        parts: In the order of their numbers.
    """

    step: int
    name: str
    parts: Tuple[KeptPart, ...]  # noqa: UP006 - Python 3.8


def new_name() -> str:
    """Return a name for a state that nobody can guess."""
    return secrets.token_hex(32)


class KeeperClient:
    """Calls a state keeper.

    Args:
        address: `HOST:PORT`.
        token: That of this process, which is needed to put something there.
    """

    def __init__(self, address: str, token: str = "") -> None:
        self.address = address
        self._token = token

    @classmethod
    def of_this_host(cls, environ: Mapping[str, str]) -> KeeperClient | None:
        """Return the state keeper of this process's host, None if it has none."""
        address = environ.get(_ADDRESS)
        known = identity.read(identity.directory())
        return cls(address, "" if known is None else known.token) if address else None

    def room(self) -> KeeperRoom:
        """Return what it would take from this process. Raises KeeperFailed."""
        with self._call("GET", "/v1/room", self._authorization) as answer:
            content = _expected(answer, _OK)
        try:
            told = json.loads(content)
            return KeeperRoom(int(told["bytes"]), _finite(told["seconds"]))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise KeeperFailed(f"{self.address} says nothing of its room: {error}") from error

    def report_need(self, size: int) -> None:
        """Let it know in the background that it has too little room, which its operators then see.

        Args:
            size: How many bytes this host would have to keep.
        """
        threading.Thread(target=self._report_need, args=(size,), name="kubeai-need", daemon=True).start()

    def _report_need(self, size: int) -> None:
        headers = {**self._authorization, "Needed-Bytes": str(size)}
        with contextlib.suppress(KeeperFailed), self._call("GET", "/v1/room", headers):
            pass

    def put(  # noqa: PLR0913 - what is put, where and until when
        self, name: str, part: int, content: Iterable[_Buffer], *, size: int, seconds: float, end: float
    ) -> None:
        """Have a part kept. Raises KeeperFailed: nothing of it is kept.

        Args:
            name: Of the state.
            part: The number of the part.
            content: Its bytes, in pieces.
            size: How many bytes these are.
            seconds: For how long it is kept, above 0. It may be a fraction: nothing stays longer than asked.
            end: When it must be there, by the monotonic clock.
        """
        if seconds <= 0:
            raise KeeperFailed("it would be kept for no time")
        kept = max(seconds, _SHORTEST_SECONDS)
        headers = {**self._authorization, "Content-Length": str(size), "Keep-Seconds": f"{kept:.3f}"}

        def in_time() -> Iterator[_Buffer]:
            for piece in content:
                if time.monotonic() > end:
                    raise KeeperFailed("time is up")
                yield piece

        with self._call("PUT", f"/v1/states/{name}/{part}", headers, in_time()) as answer:
            _expected(answer, _CREATED)

    @contextlib.contextmanager
    def get(self, name: str, part: int) -> Iterator[Callable[[memoryview], None]]:
        """Yield a function that fills memory with the next bytes of a part. Raises KeeperFailed, as this does.

        Args:
            name: Of the state.
            part: The number of the part.
        """
        with self._call("GET", f"/v1/states/{name}/{part}", {}) as answer:
            if answer.status != _OK:
                _expected(answer, _OK)

            def fill(memory: memoryview) -> None:
                filled = 0
                while filled < len(memory):
                    count = answer.readinto(memory[filled:])
                    if not count:
                        raise KeeperFailed(f"part {part} ends too soon")
                    filled += count

            yield fill

    def delete(self, name: str) -> None:
        """Remove a state. It is gone later all the same if that fails."""
        with contextlib.suppress(KeeperFailed), self._call("DELETE", f"/v1/states/{name}", {}):
            pass

    @property
    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    @contextlib.contextmanager
    def _call(
        self, method: str, path: str, headers: Mapping[str, str], content: Iterable[_Buffer] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self.address, timeout=_CONNECT_SECONDS)
        try:
            connection.connect()
            connection.sock.settimeout(_SILENT_SECONDS)
            with contextlib.suppress(ConnectionError):  # it may have answered before it had read all, and why
                connection.request(method, path, content, dict(headers))  # type: ignore[arg-type,unused-ignore]
            yield connection.getresponse()
        except KeeperFailed:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise KeeperFailed(f"the state keeper {self.address}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()


def _expected(answer: http.client.HTTPResponse, status: int) -> bytes:
    """Return the content of an answer, cut to what an answer may have. Raises KeeperFailed for another status."""
    content = answer.read(_MAX_ANSWER)
    if answer.status == status:
        return content
    try:
        why = str(json.loads(content)["message"])[:_MAX_TEXT]
    except (ValueError, TypeError, KeyError):
        why = answer.reason
    raise KeeperFailed(f"the state keeper says: {why}")


def write_note(directory: Path, kept: KeptState) -> None:
    """Write beside the checkpoints where a state is. Raises OSError.

    It replaces the note of an older state, which is removed in the background: at each moment, one of both is noted.
    """
    directory.mkdir(parents=True, exist_ok=True)
    before = read_note(directory)
    parts = [{"keeper": each.keeper, "digest": each.digest} for each in kept.parts]
    told = {"version": _VERSION, "step": kept.step, "name": kept.name, "parts": parts}
    write_atomically(directory / _NOTE, json.dumps(told))
    if before is not None:
        _remove(before)


def read_note(directory: Path) -> KeptState | None:
    """Return the state that the note beside the checkpoints names; None without one, or if it is malformed."""
    try:
        with (directory / _NOTE).open("rb") as file:
            told = json.loads(file.read(_MAX_NOTE))
        parts = tuple(KeptPart(_text(each["keeper"]), _text(each["digest"])) for each in told["parts"])
        is_known = type(told["step"]) is int and told["version"] == _VERSION and parts
        return KeptState(told["step"], _text(told["name"]), parts) if is_known else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def forget(directory: Path) -> None:
    """Remove the note beside the checkpoints. The state that it names is removed in the background."""
    kept = read_note(directory)
    if kept is None:
        return
    with contextlib.suppress(OSError):
        (directory / _NOTE).unlink()
    _remove(kept)


def _remove(kept: KeptState) -> None:
    threading.Thread(target=_delete, args=(kept,), name="kubeai-forget", daemon=True).start()


def _delete(kept: KeptState) -> None:
    for address in {each.keeper for each in kept.parts}:
        KeeperClient(address).delete(kept.name)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no number of seconds")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT:
        raise ValueError(f"{value!r} is no text")
    return value
