"""Requests to a metadata service on this machine's link: bounded, not redirected, and slower on Retry-After."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from node_agent.sources import ServiceBusy, SourceUnavailable
from node_agent.sources.announcement import MAX_BYTES
from servicekit.clock import Clock

# Seconds; a longer Retry-After is cut to this. Of the shortest lead, 120 s, it costs no more than the slowest poll that
# a cloud recommends.
MAX_WAIT = 5.0
_SLOW_DOWN = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer; `date` and `flavor` are the headers Date and Metadata-Flavor as received."""

    status: int
    body: bytes
    date: str | None
    flavor: str | None = None


def unusable(what: str, reply: Reply) -> SourceUnavailable:
    """Returns the exception for an answer that has no usable item."""
    busy = reply.status == HTTPStatus.TOO_MANY_REQUESTS or reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return (ServiceBusy if busy else SourceUnavailable)(f"{what}: HTTP {reply.status}")


class MetadataHttp:
    """A client for one metadata service. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before the root where a proxy or simulator has one.
        clock: Monotonic instants, for the waits.
        root: The path below which all items are.
        headers: Headers of each request.
        max_bytes: The largest answer that is read.
    """

    def __init__(
        self,
        base_url: str,
        clock: Clock,
        *,
        root: str = "/latest",
        headers: Mapping[str, str] = _NO_HEADERS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._base = base_url.rstrip("/") + root
        self._clock = clock
        self._max_bytes = max_bytes
        self._quiet_until = 0.0
        # The service is on this machine's link: no proxies (trust_env), no cookies, no compressed bodies that grow.
        self._session = aiohttp.ClientSession(
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", **headers},
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def request(
        self, method: str, path: str, headers: Mapping[str, str] = _NO_HEADERS, body: bytes | None = None
    ) -> Reply:
        """Sends a request and returns the answer, whatever its status.

        Raises:
            SourceUnavailable: There was no complete answer, it was too large, or the service has asked us to wait.
        """
        if self._clock.monotonic() < self._quiet_until:
            raise ServiceBusy("waits because the service asked for it")
        try:
            async with self._session.request(
                method, f"{self._base}/{path}", headers=headers, data=body, allow_redirects=False
            ) as response:
                self._note_retry_after(response)
                told = response.headers
                content = await _body(response, self._max_bytes)
                return Reply(response.status, content, told.get("Date"), told.get("Metadata-Flavor"))
        except (aiohttp.ClientError, OSError) as error:
            raise SourceUnavailable(f"no answer: {type(error).__name__}") from error

    def _note_retry_after(self, response: aiohttp.ClientResponse) -> None:
        """Obeys seconds only: a wait until a date would depend on a clock that may be wrong."""
        wait = response.headers.get("Retry-After", "")
        if response.status in _SLOW_DOWN and wait.isascii() and wait.isdecimal():
            # More digits than a day of seconds has are beyond the limit in any case.
            seconds = MAX_WAIT if len(wait) > len("86400") else min(float(wait), MAX_WAIT)
            self._quiet_until = self._clock.monotonic() + seconds


async def _body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(MAX_BYTES):
        body += chunk
        if len(body) > limit:
            raise SourceUnavailable(f"answer larger than {limit} bytes")
    return bytes(body)
