"""Decodes a chunked HTTP body into lines, without I/O.

http.client is not used for this because its buffered reader holds a lock while it waits for bytes. A process that
forks meanwhile gets a reader that can be neither used nor closed. Nothing here takes a lock.
"""

from __future__ import annotations

import re

MAX_LINE = 1024 * 1024  # bytes; the contract's bound for the largest message in either direction
_MAX_CHUNK_HEAD = 1024  # bytes; a size in hex has at most 16 digits, and nobody sends extensions
_CHUNK_HEAD = re.compile(rb"([0-9a-fA-F]{1,16})\s*(?:;.*)?")


class Malformed(ValueError):  # noqa: N818 - the name describes the bytes
    """The bytes violate the wire contract. Nothing after them can be trusted."""


class ChunkDecoder:
    """Decodes the chunked transfer coding. `ended` is True after the last chunk; later bytes are ignored."""

    def __init__(self) -> None:
        self.ended = False
        self._raw = bytearray()
        self._left = 0  # bytes still missing of the open chunk, including its final CRLF

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body that `data` completes. Raises Malformed."""
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
                raise Malformed("chunk has no size")
            return False
        head = _CHUNK_HEAD.fullmatch(self._raw[:end])
        if head is None:
            raise Malformed("chunk has no size")
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
    """Splits a body into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, body: bytes) -> list[bytes]:
        """Return the lines that `body` completes, without line ends. Raises Malformed if one exceeds MAX_LINE."""
        self._rest += body
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        if any(len(line) > MAX_LINE for line in [*lines, rest]):
            raise Malformed(f"line longer than {MAX_LINE} bytes")
        return [bytes(line) for line in lines]
