"""What was refused: counted by wire and code, and logged without a line for each."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

import structlog

_SUMMARY_SECONDS = 10.0
_MAX_WHY = 200

_log = structlog.get_logger()


class Wire(StrEnum):
    """Where it was said."""

    GRPC = "grpc"
    HTTP = "http"
    WEBHOOK = "webhook"


class Code(StrEnum):
    """Why it was refused. The only labels there are: nothing that a peer says becomes one."""

    BAD_REQUEST = "bad_request"
    """No call at all: bytes that are not HTTP."""
    UNKNOWN_CALL = "unknown_call"
    MALFORMED = "malformed"
    OVERSIZED = "oversized"
    TOO_MANY = "too_many"
    BAD_TOKEN = "bad_token"  # noqa: S105 - a code, not a token
    FOREIGN_TOKEN = "foreign_token"  # noqa: S105 - as above
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_NODE = "unknown_node"
    NAME_IS_LIVE = "name_is_live"
    RUN_IS_OVER = "run_is_over"
    OLDER_REVISION = "older_revision"
    OLDER_SESSION = "older_session"
    SLOW_READER = "slow_reader"
    TOO_SLOW = "too_slow"
    """A connection that was opened and not used, or a request that did not end."""
    NOT_SERVING = "not_serving"
    INTERNAL = "internal"
    """A fault of ours: logged with its traceback."""


class Refusals:
    """Counts refusals. The first of a kind is logged at once, what follows as one number every few seconds."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Wire, Code]] = Counter()
        self._unsaid: dict[tuple[Wire, Code], int] = {}

    def add(self, wire: Wire, code: Code, why: str, fault: Exception | None = None) -> None:
        """Takes note of one refusal; `why` is for people and may quote the peer, a `fault` of ours has a traceback."""
        kind = wire, code
        self._counts[kind] += 1
        if kind in self._unsaid:
            self._unsaid[kind] += 1
            return
        self._unsaid[kind] = 0
        _log.warning("peer.refused", wire=wire, code=code, why=readable(why), exc_info=fault)

    def counts(self) -> Mapping[tuple[Wire, Code], int]:
        """How many there were of each kind since this process started."""
        return self._counts

    async def run(self) -> None:
        """Root task: summarizes, again and again."""
        while True:
            await asyncio.sleep(_SUMMARY_SECONDS)
            self.summarize()

    def summarize(self) -> None:
        """Logs what was only counted since the last summary; a kind that has ended is news again when it returns."""
        for (wire, code), more in list(self._unsaid.items()):
            if more:
                _log.warning("peer.refused_more", wire=wire, code=code, count=more)
                self._unsaid[wire, code] = 0
            else:
                del self._unsaid[wire, code]


def readable(text: str, most: int = _MAX_WHY) -> str:
    """The beginning of a text that may quote a peer, without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "�" for letter in text[:most])
