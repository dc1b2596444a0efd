"""From the bytes of a chunked HTTP body to lines; no I/O.

The body is decoded here and not by http.client because its buffered reader holds a lock while it waits for bytes: a
process that forks meanwhile gets a reader that can be neither used nor closed. Nothing here has a lock.
"""

from __future__ import annotations

import re

MAX_LINE = 1024 * 1024  # bytes; the contract's bound for the largest message in either direction
_MAX_CHUNK_HEAD = 1024  # bytes; a size in hex is 16 at most, the rest would be extensions that nobody sends
_CHUNK_HEAD = re.compile(rb"([0-9a-fA-F]{1,16})\s*(?:;.*)?")


class Malformed(ValueError):  # noqa: N818 - named for what the bytes are
    """The bytes are not what the contract says; nothing after them can be trusted."""


class ChunkDecoder:
    """Takes the chunked transfer coding off. `ended` turns True at the last chunk; what follows it is ignored."""

    def __init__(self) -> None:
        self.ended = False
        self._raw = bytearray()
        self._left = 0  # bytes of the open chunk still to come, its closing CRLF included

    def feed(self, data: bytes) -> bytes:
        """The part of the body that `data` completes. Raises Malformed."""
        self._raw += data
        body = bytearray()
        while self._raw and not self.ended:
            if not (self._take(body) if self._left else self._open()):
                break
        return bytes(body)

    def _open(self) -> bool:
        end = self._raw.find(b"\r\n")
        if end < 0:
            if len(self._raw) > _MAX_CHUNK_HEAD:
                raise Malformed("a chunk without a size")
            return False
        head = _CHUNK_HEAD.fullmatch(self._raw[:end])
        if head is None:
            raise Malformed("a chunk without a size")
        del self._raw[: end + 2]
        size = int(head[1], 16)
        self.ended = size == 0
        self._left = size + 2
        return True

    def _take(self, body: bytearray) -> bool:
        part = self._raw[: self._left]
        del self._raw[: self._left]
        body += part[: max(0, self._left - 2)]
        self._left -= len(part)
        return True


class LineSplitter:
    """Cuts a body into its lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, body: bytes) -> list[bytes]:
        """The lines that `body` completes, without their ends. Raises Malformed when one is longer than MAX_LINE."""
        self._rest += body
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        if any(len(line) > MAX_LINE for line in [*lines, rest]):
            raise Malformed(f"a line of more than {MAX_LINE} bytes")
        return [bytes(line) for line in lines]
