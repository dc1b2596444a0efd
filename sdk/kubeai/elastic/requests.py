"""The server side of the HTTP contract, as far as a relay needs it: it reads requests and writes answers, as bytes.

A connection carries one request. Nothing here does I/O or takes a lock.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from .framing import Malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_HEAD = 16 * 1024
_MAX_BODY = 16 * 1024  # as the supervisor's bound for a message of a process
_FIRST_LINE = re.compile(rb"POST (/[!-~]{0,200}) HTTP/1\.1")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,6})[ \t]*\r\n", re.IGNORECASE)

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True)
class Request:
    """A POST of a JSON object."""

    path: str
    body: dict[str, Any]


class RequestReader:
    """Reads one request from the bytes of a connection."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Request | None:
        """Return the request once it is complete. Raises Malformed, also if it is too large or more follows it."""
        self._data += data
        head, found, body = bytes(self._data).partition(b"\r\n\r\n")
        if len(head) > _MAX_HEAD:
            raise Malformed("the head is too long")
        if not found:
            return None
        first, length = _FIRST_LINE.match(head), _LENGTH.search(head + b"\r\n")
        if first is None or length is None or int(length[1]) > _MAX_BODY or len(body) > int(length[1]):
            raise Malformed("not a request with one JSON object")
        return Request(first[1].decode(), _object(body)) if len(body) == int(length[1]) else None


def answer(status: int, content: Mapping[str, Any]) -> bytes:
    """Return the complete answer to a request."""
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} {_reason(status)}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def chunk(line: Mapping[str, Any]) -> bytes:
    """Return a line of a stream, as a chunk."""
    data = json.dumps(line).encode() + b"\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Refused"


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Malformed("not JSON") from error
    if not isinstance(value, dict):
        raise Malformed("not a JSON object")
    return value
