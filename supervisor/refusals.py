"""Counts refused messages by wire and code, and logs them in summaries."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import structlog

_SUMMARY_SECONDS = 10.0
_MAX_WHY = 200

_log = structlog.get_logger()


class Wire(StrEnum):
    """The protocol of a refused message."""

    GRPC = "grpc"
    HTTP = "http"
    WEBHOOK = "webhook"


class Code(StrEnum):
    """The reason of a refusal. These are the only label values: no text of a peer becomes one."""

    BAD_REQUEST = "bad_request"
    """The bytes are not HTTP."""
    UNKNOWN_CALL = "unknown_call"
    MALFORMED = "malformed"
    OVERSIZED = "oversized"
    TOO_MANY = "too_many"
    BAD_TOKEN = "bad_token"  # noqa: S105 - a code, not a token
    FOREIGN_TOKEN = "foreign_token"  # noqa: S105 - as above
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_NODE = "unknown_node"
    UNKNOWN_RELAY = "unknown_relay"
    NAME_IS_LIVE = "name_is_live"
    RUN_IS_OVER = "run_is_over"
    JOB_IS_OVER = "job_is_over"
    OLDER_REVISION = "older_revision"
    OLDER_SESSION = "older_session"
    SLOW_READER = "slow_reader"
    TOO_SLOW = "too_slow"
    """The connection was not used, or the request did not end in time."""
    NOT_SERVING = "not_serving"
    INTERNAL = "internal"
    """A bug of the supervisor, logged with its traceback."""


@dataclass(slots=True)
class Refusals:
    """Counts refusals. The first of each wire and code is logged at once, the following ones every few seconds.

    `counts` has the number of refusals by wire and code since this process started.
    """

    counts: Counter[tuple[Wire, Code]] = field(default_factory=Counter)
    _unlogged: dict[tuple[Wire, Code], int] = field(default_factory=dict)

    def add(self, wire: Wire, code: Code, why: str, fault: Exception | None = None) -> None:
        """Counts one refusal; `why` is for people and may quote the peer, `fault` is an exception of our own code."""
        kind = wire, code
        self.counts[kind] += 1
        if kind in self._unlogged:
            self._unlogged[kind] += 1
            return
        self._unlogged[kind] = 0
        _log.warning("peer.refused", wire=wire, code=code, why=readable(why), exc_info=fault)

    async def run(self) -> None:
        """Root task: logs a summary every few seconds."""
        while True:
            await asyncio.sleep(_SUMMARY_SECONDS)
            self.summarize()

    def summarize(self) -> None:
        """Logs the counts since the last summary; after an interval without refusals the next one is logged at once."""
        for (wire, code), more in list(self._unlogged.items()):
            if more:
                _log.warning("peer.refused_more", wire=wire, code=code, count=more)
                self._unlogged[wire, code] = 0
            else:
                del self._unlogged[wire, code]


def readable(text: str, most: int = _MAX_WHY) -> str:
    """Returns the beginning of a text that may quote a peer, without control characters."""
    return "".join(letter if letter.isprintable() else "�" for letter in text[:most])
