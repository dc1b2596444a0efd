"""Session tokens of a metadata service: a PUT returns one, and every GET carries it.

The clouds differ only in the names of the headers, and in whether a GET without a token is answered.
"""

import asyncio
import re
from dataclasses import dataclass
from http import HTTPStatus

from node_agent.sources import MetadataMode, SourceUnavailable
from node_agent.sources.http import MetadataHttp, Reply, unusable
from servicekit.clock import Clock

# Seconds: the longest life that a service grants, and how long before the end a new token is fetched.
_TTL = 21600
_MARGIN = 300
# While the old token is still valid, a renewal may delay a poll, which has one second, by this many at most.
_RENEWAL_SECONDS = 0.3
_TOKEN = re.compile(r"[!-~]{1,2048}")


@dataclass(frozen=True, slots=True)
class TokenHeaders:
    """The names of the headers for the token and for the life of a new one in seconds."""

    token: str
    ttl: str


@dataclass(frozen=True, slots=True)
class _Token:
    value: str
    # On the monotonic clock.
    expires_at: float


class TokenClient:
    """Sends GET requests with a token, which it fetches and renews."""

    def __init__(self, http: MetadataHttp, headers: TokenHeaders, clock: Clock) -> None:
        self._http = http
        self._headers = headers
        self._clock = clock
        self._token: _Token | None = None

    async def get(self, path: str) -> Reply:
        """Sends a GET with a token; after a 401 once more with a new token.

        Raises:
            SourceUnavailable: There was no token, or no complete answer.
        """
        reply = await self._get(path)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            self._token = None
            reply = await self._get(path)
        return reply

    async def _get(self, path: str) -> Reply:
        self._token = await self._valid(self._token)
        return await self._http.request("GET", path, {self._headers.token: self._token.value})

    async def _valid(self, token: _Token | None) -> _Token:
        left = token.expires_at - self._clock.monotonic() if token else 0.0
        if token is None or left <= 0.0:
            return await self._new()
        return token if left >= _MARGIN else await self._renewed(token)

    async def _renewed(self, token: _Token) -> _Token:
        """Keeps the old token while it is valid: a service that grants no new one may still answer."""
        try:
            async with asyncio.timeout(_RENEWAL_SECONDS):
                return await self._new()
        except (SourceUnavailable, TimeoutError):
            return token

    async def _new(self) -> _Token:
        asked_at = self._clock.monotonic()
        reply = await self._http.request("PUT", "api/token", {self._headers.ttl: str(_TTL)})
        value = reply.body.decode("ascii", errors="replace").strip()
        if reply.status != HTTPStatus.OK or not _TOKEN.fullmatch(value):
            raise unusable("no session token", reply)
        return _Token(value, asked_at + _TTL)


class OptionalTokenClient:
    """Sends GET requests with or without a token, as the mode says or as the service requires it."""

    def __init__(self, http: MetadataHttp, headers: TokenHeaders, mode: MetadataMode, clock: Clock) -> None:
        self._http = http
        self._mode = mode
        self._tokens = TokenClient(http, headers, clock)
        self._tokens_wanted = mode is MetadataMode.HARDENED

    async def get(self, path: str) -> Reply:
        """Sends a GET.

        Raises:
            SourceUnavailable: There was no token, or no complete answer.
        """
        if not self._tokens_wanted:
            reply = await self._http.request("GET", path)
            if self._mode is MetadataMode.PLAIN or not _refused(reply):
                return reply
        reply = await self._tokens.get(path)
        # Only if the token helped was the lack of a token the reason for the refusal.
        self._tokens_wanted = self._mode is MetadataMode.HARDENED or not _refused(reply)
        return reply


def _refused(reply: Reply) -> bool:
    return reply.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
