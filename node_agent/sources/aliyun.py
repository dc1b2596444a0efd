"""Source `aliyun`: the metadata service of an Alibaba Cloud ECS spot instance.

`…/instance/spot/termination-time` answers 404 or nothing at all while no release is planned, and the UTC instant of the
release from five minutes before it. Everything else, refusals and time-outs included, is unknown.
"""

import asyncio
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import aiohttp

from node_agent.notices import SourceName
from node_agent.sources import Answer, Clear, NodeIdentity, Noticed, SourceUnavailable
from node_agent.sources.announcement import MOST_BYTES, read
from servicekit.clock import Clock

NAME = SourceName("aliyun")

_TERMINATION_TIME = "instance/spot/termination-time"
_TOKEN_HEADER = "X-aliyun-ecs-metadata-token"  # noqa: S105 - a header's name
_TTL_HEADER = "X-aliyun-ecs-metadata-token-ttl-seconds"
# The longest life the service grants, in seconds; a new token is fetched this long before the end of the old one.
_TOKEN_TTL = 21600
_TOKEN_MARGIN = 300
# Region, zone and type are for people: they may hold up the first poll by this many seconds at most.
_DETAILS_SECONDS = 0.3
# Releases are announced minutes ahead: a Date that is further from one than this many seconds is wrong.
_SANE_LEAD = 86400
_IDENTIFIER = re.compile(r"[!-~]{1,128}")
_TOKEN = re.compile(r"[!-~]{1,2048}")


class MetadataMode(enum.StrEnum):
    """How the metadata service is asked."""

    # Plain until it is refused for want of a token, with tokens from then on.
    AUTO = "auto"
    PLAIN = "plain"
    HARDENED = "hardened"


@dataclass(frozen=True, slots=True)
class _Token:
    value: str
    # On the monotonic clock.
    expires_at: float


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: bytes
    date: str | None


class AliyunSource:
    """Asks the metadata service. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before `/latest` where a proxy or simulator has one.
        mode: Whether requests carry a session token.
        clock: For the age of the token, and for the lead time where the service's own clock is not known.
    """

    def __init__(self, base_url: str, mode: MetadataMode, clock: Clock) -> None:
        self._base = base_url.rstrip("/") + "/latest"
        self._mode = mode
        self._clock = clock
        self._token: _Token | None = None
        self._tokens_wanted = mode is MetadataMode.HARDENED
        self._identity: NodeIdentity | None = None
        # The service is on this machine's link: no proxies (trust_env), no cookies, no compressed bodies that grow.
        self._http = aiohttp.ClientSession(
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
        )

    @property
    def name(self) -> SourceName:
        """Part of every notice's id."""
        return NAME

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def identify(self) -> NodeIdentity:
        """The instance, asked for once: the service limits the rate of requests.

        Raises:
            SourceUnavailable: The service does not tell the instance's id now.
        """
        if self._identity is None:
            uid = await self._item("instance-id")
            self._identity = await self._described(NodeIdentity(uid))
        return self._identity

    async def _described(self, identity: NodeIdentity) -> NodeIdentity:
        try:
            async with asyncio.timeout(_DETAILS_SECONDS):
                return NodeIdentity(
                    uid=identity.uid,
                    region=await self._item("region-id"),
                    zone=await self._item("zone-id"),
                    instance_type=await self._item("instance/instance-type"),
                )
        except (SourceUnavailable, TimeoutError):
            return identity

    async def _item(self, path: str) -> str:
        reply = await self._get(path)
        text = reply.body.decode("ascii", errors="replace").strip()
        if reply.status != HTTPStatus.OK or not _IDENTIFIER.fullmatch(text):
            raise SourceUnavailable(f"no usable {path}: HTTP {reply.status}")
        return text

    async def poll(self) -> Answer:
        """Ask once whether a release is planned.

        Raises:
            SourceUnavailable: Anything but the documented answers.
        """
        reply = await self._get(_TERMINATION_TIME)
        if reply.status == HTTPStatus.NOT_FOUND:
            return Clear()
        if reply.status != HTTPStatus.OK:
            raise SourceUnavailable(f"HTTP {reply.status}")
        deadline = read(reply.body)
        if deadline is None:
            return Clear()
        return Noticed(deadline, self._seconds_left(deadline, reply.date), "the spot instance will be released")

    def _seconds_left(self, deadline: datetime, date: str | None) -> float:
        """Seconds from the answer to the deadline, by the clock that named the deadline.

        A node's clock that is wrong by a minute would shorten or lengthen the lead by a minute, so the answer's Date
        wins. It has whole seconds: within its second the node's clock may tell how much of it has passed.
        """
        named = deadline.timestamp()
        now = self._clock.now()
        then = _instant(date)
        if then is not None and abs(named - then) <= _SANE_LEAD:
            now = min(max(now, then), then + 1.0)
        return named - now

    async def _get(self, path: str) -> _Reply:
        """A GET with a token where one is needed; refused for its token, once more with a new one."""
        if not self._tokens_wanted:
            reply = await self._request("GET", f"meta-data/{path}", {})
            if self._mode is MetadataMode.PLAIN or not _refused(reply):
                return reply
        reply = await self._get_with_token(path)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            self._token = None
            reply = await self._get_with_token(path)
        # Only a token that helped shows that tokens are what was missing.
        self._tokens_wanted = self._mode is MetadataMode.HARDENED or not _refused(reply)
        return reply

    async def _get_with_token(self, path: str) -> _Reply:
        token = await self._valid_token()
        return await self._request("GET", f"meta-data/{path}", {_TOKEN_HEADER: token})

    async def _valid_token(self) -> str:
        left = self._token.expires_at - self._clock.monotonic() if self._token else 0.0
        if self._token is None or left < _TOKEN_MARGIN:
            self._token = await self._new_token()
        return self._token.value

    async def _new_token(self) -> _Token:
        asked_at = self._clock.monotonic()
        reply = await self._request("PUT", "api/token", {_TTL_HEADER: str(_TOKEN_TTL)})
        value = reply.body.decode("ascii", errors="replace").strip()
        if reply.status != HTTPStatus.OK or not _TOKEN.fullmatch(value):
            raise SourceUnavailable(f"no session token: HTTP {reply.status}")
        return _Token(value, asked_at + _TOKEN_TTL)

    async def _request(self, method: str, path: str, headers: Mapping[str, str]) -> _Reply:
        url = f"{self._base}/{path}"
        try:
            async with self._http.request(method, url, headers=headers, allow_redirects=False) as response:
                return _Reply(response.status, await _body(response), response.headers.get("Date"))
        except (aiohttp.ClientError, OSError) as error:
            raise SourceUnavailable(f"no answer: {type(error).__name__}") from error


def _refused(reply: _Reply) -> bool:
    return reply.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(MOST_BYTES):
        body += chunk
        if len(body) > MOST_BYTES:
            raise SourceUnavailable(f"answer larger than {MOST_BYTES} bytes")
    return bytes(body)


def _instant(date: str | None) -> float | None:
    """The Unix seconds of an HTTP date; None where there is none or it says no such thing."""
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, OverflowError):
        return None
