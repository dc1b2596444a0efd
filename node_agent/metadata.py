"""Asks a cloud's metadata service: requests, tokens and timestamps, which all sources of clouds share.

Requests are bounded and not redirected, carry a session token where the cloud has tokens, and slow down on Retry-After.
The answers name the machine and the instant of a reclaim.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import aiohttp

from node_agent.notices import MachinePrice, MetadataMode, NodeIdentity, ServiceBusy, SourceName, SourceUnavailable
from servicekit.clock import Clock

# A timestamp has 20 bytes.
MAX_BYTES = 4096

# Seconds; a longer Retry-After is cut to this. Of the shortest lead, 120 s, it costs no more than the slowest poll that
# a cloud recommends.
_MAX_WAIT = 5.0
_SLOW_DOWN = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_NO_HEADERS: Mapping[str, str] = {}

# Seconds: the longest life that a service grants to a token, and how long before the end a new one is fetched.
_TTL = 21600
_MARGIN = 300
# While the old token is still valid, a renewal may delay a poll, which has one second, by this many at most.
_RENEWAL_SECONDS = 0.3
_TOKEN = re.compile(r"[!-~]{1,2048}")
_REFUSED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

# All items but the id only describe the machine: they may delay the first poll by this many seconds at most.
_DETAILS_SECONDS = 0.3
_IDENTIFIER = re.compile(r"[!-~]{1,128}")

# strptime alone also accepts "2015-1-5T1:2:3Z".
_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_LEAP_SECOND = b"T23:59:60Z"
_WITH_ZONE = re.compile(rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.\d{1,9})?(Z|[+-]\d\d:\d\d)")

# Seconds. Reclaims are announced minutes ahead: where the Date is further ahead of the instant than this, one of the
# two is wrong, and the node's own clock decides.
_SANE_LEAD = 3600
# Seconds. No machine runs on for so long after its announced end: a Date that says so is wrong, not the announcement.
_SANE_OVERRUN = 600


@dataclass(frozen=True, slots=True)
class MetadataReply:
    """A complete answer; `date` and `flavor` are the headers Date and Metadata-Flavor as received."""

    status: int
    body: bytes
    date: str | None
    flavor: str | None = None


Get = Callable[[str], Awaitable[MetadataReply]]


class MetadataHttp:
    """Sends requests to one metadata service. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before the root where a proxy or simulator has one.
        clock: Monotonic instants, for the waits.
        root: The path below which all items are.
        headers: Headers of each request.
        max_bytes: The largest answer that is read.

    Attributes:
        session: To be closed at the end.
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
        self.session = aiohttp.ClientSession(
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", **headers},
            auto_decompress=False,
        )

    async def request(
        self, method: str, path: str, headers: Mapping[str, str] = _NO_HEADERS, body: bytes | None = None
    ) -> MetadataReply:
        """Sends a request and returns the answer, whatever its status.

        Raises:
            SourceUnavailable: There was no complete answer, it was too large, or the service has asked us to wait.
        """
        if self._clock.monotonic() < self._quiet_until:
            raise ServiceBusy("waits because the service asked for it")
        try:
            async with self.session.request(
                method, f"{self._base}/{path}", headers=headers, data=body, allow_redirects=False
            ) as response:
                # Only seconds are obeyed: a wait until a date would depend on a clock that may be wrong.
                wait = response.headers.get("Retry-After", "")
                if response.status in _SLOW_DOWN and wait.isascii() and wait.isdecimal():
                    # More digits than a day of seconds has are beyond the limit in any case.
                    seconds = _MAX_WAIT if len(wait) > len("86400") else min(float(wait), _MAX_WAIT)
                    self._quiet_until = self._clock.monotonic() + seconds
                content = bytearray()
                async for chunk in response.content.iter_chunked(MAX_BYTES):
                    content += chunk
                    if len(content) > self._max_bytes:
                        raise SourceUnavailable(f"answer larger than {self._max_bytes} bytes")
                sent = response.headers
                return MetadataReply(response.status, bytes(content), sent.get("Date"), sent.get("Metadata-Flavor"))
        except (aiohttp.ClientError, OSError) as error:
            raise SourceUnavailable(f"no answer: {type(error).__name__}") from error


@dataclass(frozen=True, slots=True)
class TokenHeaders:
    """The names of the headers for the token and for the life of a new one in seconds."""

    token: str
    ttl: str


@dataclass(frozen=True, slots=True)
class _SessionToken:
    value: str
    # On the monotonic clock.
    expires_at: float


class TokenClient:
    """Sends GET requests with or without a session token, as the mode says or as the service requires it.

    It fetches tokens by a PUT and renews them. The clouds differ only in the names of the headers, and in whether a GET
    without a token is answered.
    """

    def __init__(self, http: MetadataHttp, headers: TokenHeaders, mode: MetadataMode, clock: Clock) -> None:
        self._http = http
        self._headers = headers
        self._mode = mode
        self._clock = clock
        self._wanted = mode is MetadataMode.HARDENED
        self._token: _SessionToken | None = None

    async def get(self, path: str) -> MetadataReply:
        """Sends a GET. If the service refuses its token with 401, sends it once more with a new token.

        Raises:
            SourceUnavailable: There was no token, or no complete answer.
        """
        if not self._wanted:
            reply = await self._http.request("GET", path)
            if self._mode is MetadataMode.PLAIN or reply.status not in _REFUSED:
                return reply
        reply = await self._get(path)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            self._token = None
            reply = await self._get(path)
        # Only if the token helped was the lack of a token the reason for the refusal.
        self._wanted = self._mode is MetadataMode.HARDENED or reply.status not in _REFUSED
        return reply

    async def _get(self, path: str) -> MetadataReply:
        token = self._token
        left = token.expires_at - self._clock.monotonic() if token else 0.0
        if token is None or left <= 0.0:
            token = await self._new()
        elif left < _MARGIN:
            # Keeps the old token while it is valid: a service that grants no new one may still answer.
            with contextlib.suppress(SourceUnavailable, TimeoutError):
                async with asyncio.timeout(_RENEWAL_SECONDS):
                    token = await self._new()
        self._token = token
        return await self._http.request("GET", path, {self._headers.token: token.value})

    async def _new(self) -> _SessionToken:
        asked_at = self._clock.monotonic()
        reply = await self._http.request("PUT", "api/token", {self._headers.ttl: str(_TTL)})
        value = reply.body.decode("ascii", errors="replace").strip()
        if reply.status != HTTPStatus.OK or not _TOKEN.fullmatch(value):
            raise _unusable("no session token", reply)
        return _SessionToken(value, asked_at + _TTL)


@dataclass(frozen=True, slots=True)
class IdentityPaths:
    """The metadata paths of one cloud that describe the machine; each is one item, which never changes.

    Attributes:
        region: Empty, like each one below, where the cloud has no such item.
        life_cycle: The item that tells spot from the rest.
        prices: What the values of that item mean.
    """

    cloud: str
    uid: str
    region: str
    zone: str
    instance_type: str
    life_cycle: str = ""
    prices: Mapping[str, MachinePrice] = field(default_factory=dict)


async def read_item(get: Get, path: str) -> str:
    """Reads one item, whose value is a single word.

    Raises:
        SourceUnavailable: There is no such item now.
    """
    reply = await get(path)
    text = reply.body.decode("ascii", errors="replace").strip()
    if reply.status != HTTPStatus.OK or not _IDENTIFIER.fullmatch(text):
        raise _unusable(f"no usable {path}", reply)
    return text


class MetadataSource:
    """The base of the sources that ask a metadata service.

    Args:
        http: Closed with the source.
        get: Sends a GET below the root of `http`, with a token where the cloud has tokens.
        paths: The items that describe the machine.
        clock: For the lead time where the service's own clock is not known.
    """

    def __init__(self, http: MetadataHttp, get: Get, paths: IdentityPaths, clock: Clock) -> None:
        self.name = SourceName(paths.cloud)
        self._http = http
        self._get = get
        self._paths = paths
        self._clock = clock
        self._identity: NodeIdentity | None = None

    async def close(self) -> None:
        await self._http.session.close()

    async def identify(self) -> NodeIdentity:
        """Asks for the machine once, as services limit the rate of requests; all but the uid may be missing.

        Raises:
            SourceUnavailable: The service does not tell the machine's id now.
        """
        if self._identity is not None:
            return self._identity
        uid = await read_item(self._get, self._paths.uid)
        found = dict.fromkeys(("region", "zone", "instance_type", "life_cycle"), "")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DETAILS_SECONDS):
                for name in found:
                    path = getattr(self._paths, name)
                    with contextlib.suppress(SourceUnavailable):
                        found[name] = await read_item(self._get, path) if path else ""
        price = self._paths.prices.get(found.pop("life_cycle"), MachinePrice.UNKNOWN)
        self._identity = NodeIdentity(uid, cloud=self.name, price_class=price, **found)
        return self._identity


def parse_utc(body: bytes) -> datetime | None:
    """Parses the announced instant (UTC); None if the service announces nothing.

    Raises:
        SourceUnavailable: The text is neither empty nor a timestamp such as `2015-01-05T18:02:00Z`.
    """
    text = body.strip()
    if not text:
        return None
    if not _TIMESTAMP.fullmatch(text):
        raise SourceUnavailable("malformed announcement")
    leap = text.endswith(_LEAP_SECOND)
    if leap:
        text = text.removesuffix(_LEAP_SECOND) + b"T23:59:59Z"
    try:
        instant = datetime.strptime(text.decode("ascii"), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        # Unix time has no such second: it is the first of the next day.
        return instant + timedelta(seconds=1) if leap else instant
    except (ValueError, OverflowError) as error:
        raise SourceUnavailable("malformed announcement") from error


def parse_with_zone(body: bytes) -> datetime | None:
    """Parses the announced instant, with a zone (RFC 3339), and drops parts of a second; see `parse_utc`.

    Raises:
        SourceUnavailable: The text is neither empty nor a timestamp such as `2015-01-05T18:02:00+08:00`.
    """
    text = body.strip()
    if not text:
        return None
    found = _WITH_ZONE.fullmatch(text)
    if found is None:
        raise SourceUnavailable("malformed announcement")
    if found[2] == b"Z":
        return parse_utc(found[1].replace(b" ", b"T") + b"Z")
    try:
        return datetime.fromisoformat((found[1] + found[2]).decode("ascii")).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise SourceUnavailable("malformed announcement") from error


def seconds_left(announced: datetime, date: str | None, now: float) -> float:
    """Returns the seconds from the answer to the announced instant, both by the service's clock.

    If the node's clock is wrong by a minute, the lead would be wrong by a minute, so the answer's Date wins. The Date
    has whole seconds; within its second the node's clock tells the fraction.

    Args:
        announced: The instant that the source named.
        date: The Date header of the answer.
        now: The node's own clock in Unix seconds; used alone where the Date is missing or cannot be right.
    """
    named = announced.timestamp()
    with contextlib.suppress(ValueError, OverflowError):
        sent = parsedate_to_datetime(date) if date else None
        if sent is not None:
            # A zone of `-0000` or none: as a naive datetime it would be taken for this machine's local time.
            then = (sent if sent.tzinfo is not None else sent.replace(tzinfo=UTC)).timestamp()
            if -_SANE_OVERRUN <= named - then <= _SANE_LEAD:
                now = min(max(now, then), then + 1.0)
    return named - now


def _unusable(what: str, reply: MetadataReply) -> SourceUnavailable:
    """Returns the exception for an answer that has no usable item."""
    busy = reply.status == HTTPStatus.TOO_MANY_REQUESTS or reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return (ServiceBusy if busy else SourceUnavailable)(f"{what}: HTTP {reply.status}")
