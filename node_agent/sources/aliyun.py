"""Source `aliyun`: the metadata service of an Alibaba Cloud ECS spot instance.

`…/instance/spot/termination-time` answers with 404 or an empty body while no release is planned, and with the UTC
instant of the release from five minutes before it. Everything else, including refusals and time-outs, is unknown.
"""

import enum
from http import HTTPStatus

from node_agent.notices import SourceName
from node_agent.sources import Answer, Clear, NodeIdentity, Noticed, SourceUnavailable, machine
from node_agent.sources.announcement import parse
from node_agent.sources.http import MetadataHttp, Reply
from node_agent.sources.lead import seconds_left
from node_agent.sources.session_token import TokenClient, TokenHeaders
from servicekit.clock import Clock

NAME = SourceName("aliyun")

_TERMINATION_TIME = "meta-data/instance/spot/termination-time"
_HEADERS = TokenHeaders(token="X-aliyun-ecs-metadata-token", ttl="X-aliyun-ecs-metadata-token-ttl-seconds")  # noqa: S106 - names
_IDENTITY = machine.Paths(
    cloud=NAME,
    uid="meta-data/instance-id",
    region="meta-data/region-id",
    zone="meta-data/zone-id",
    instance_type="meta-data/instance/instance-type",
)


class MetadataMode(enum.StrEnum):
    """Whether requests to the metadata service carry a session token."""

    # Without a token until a request is refused for the lack of one, with tokens from then on.
    AUTO = "auto"
    PLAIN = "plain"
    HARDENED = "hardened"


class AliyunSource:
    """Asks the metadata service. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before `/latest` where a proxy or simulator has one.
        mode: Whether requests carry a session token.
        clock: For the age of the token, and for the lead time where the service's own clock is not known.
    """

    def __init__(self, base_url: str, mode: MetadataMode, clock: Clock) -> None:
        self._mode = mode
        self._clock = clock
        self._http = MetadataHttp(base_url, clock)
        self._tokens = TokenClient(self._http, _HEADERS, clock)
        self._tokens_wanted = mode is MetadataMode.HARDENED
        self._identity: NodeIdentity | None = None

    @property
    def name(self) -> SourceName:
        return NAME

    async def close(self) -> None:
        await self._http.close()

    async def identify(self) -> NodeIdentity:
        """Asks for the instance once: the service limits the rate of requests."""
        if self._identity is None:
            self._identity = await machine.identify(self._get, _IDENTITY)
        return self._identity

    async def poll(self) -> Answer:
        reply = await self._get(_TERMINATION_TIME)
        if reply.status == HTTPStatus.NOT_FOUND:
            return Clear()
        if reply.status != HTTPStatus.OK:
            raise SourceUnavailable(f"HTTP {reply.status}")
        announced = parse(reply.body)
        if announced is None:
            return Clear()
        left = seconds_left(announced, reply.date, self._clock.wall())
        return Noticed(announced, left, "the spot instance will be released")

    async def _get(self, path: str) -> Reply:
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
