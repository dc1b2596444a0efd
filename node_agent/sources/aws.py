"""Source `aws`: the metadata service (IMDSv2) of an EC2 spot instance.

`…/spot/instance-action` answers 404 while nothing is planned, and from two minutes before the interruption what will
be done and when. `…/events/recommendations/rebalance` says that the risk has grown: a warning that is shown and never
a notice, because most instances that are warned of stay, and some are interrupted without a warning.
"""

import asyncio
import enum
from http import HTTPStatus

import msgspec

from node_agent.notices import SourceName
from node_agent.sources import Answer, Clear, NodeIdentity, Noticed, SourceUnavailable, machine
from node_agent.sources.announcement import read
from node_agent.sources.http import MetadataHttp, Reply
from node_agent.sources.lead import seconds_left
from node_agent.sources.session_token import TokenClient, TokenHeaders
from servicekit.clock import Clock

NAME = SourceName("aws")

_INSTANCE_ACTION = "meta-data/spot/instance-action"
_REBALANCE = "meta-data/events/recommendations/rebalance"
_HEADERS = TokenHeaders(token="X-aws-ec2-metadata-token", ttl="X-aws-ec2-metadata-token-ttl-seconds")  # noqa: S106 - names
_IDENTITY = machine.Paths(
    uid="meta-data/instance-id",
    region="meta-data/placement/region",
    zone="meta-data/placement/availability-zone",
    instance_type="meta-data/instance-type",
)
# The warning is asked for this seldom, and only after an answer that left it this much of the poll's one second; it may
# take as much itself. So a warning that cannot be had never costs an answer about notices.
_WARNING_EVERY = 5.0
_WARNING_SECONDS = 0.3
# What msgspec and the encoding of its words raise. Some thousand brackets fit into the largest answer.
_MALFORMED = (msgspec.DecodeError, UnicodeError, RecursionError)


class _Action(enum.StrEnum):
    TERMINATE = "terminate"
    STOP = "stop"
    HIBERNATE = "hibernate"


_MESSAGES = {
    _Action.TERMINATE: "the spot instance will be terminated",
    _Action.STOP: "the spot instance will be stopped",
    _Action.HIBERNATE: "the spot instance will be hibernated",
}


class _InstanceAction(msgspec.Struct, frozen=True):
    action: _Action
    time: str


class _Rebalance(msgspec.Struct, frozen=True):
    noticeTime: str  # noqa: N815 - the service's name


class AwsSource:
    """Asks the metadata service, always with a token. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before `/latest` where a proxy or simulator has one.
        clock: For the age of the token, and for the lead time where the service's own clock is not known.
    """

    def __init__(self, base_url: str, clock: Clock) -> None:
        self._clock = clock
        self._http = MetadataHttp(base_url, clock)
        self._tokens = TokenClient(self._http, _HEADERS, clock)
        self._identity: NodeIdentity | None = None
        self._warning = ""
        self._warning_due = clock.monotonic()

    @property
    def name(self) -> SourceName:
        """Part of every notice's id."""
        return NAME

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def identify(self) -> NodeIdentity:
        """The instance, asked for once.

        Raises:
            SourceUnavailable: The service does not tell the instance's id now.
        """
        if self._identity is None:
            self._identity = await machine.identify(self._tokens.get, _IDENTITY)
        return self._identity

    async def poll(self) -> Answer:
        """Ask once whether an interruption is planned.

        Raises:
            SourceUnavailable: Anything but the documented answers.
        """
        asked_at = self._clock.monotonic()
        reply = await self._tokens.get(_INSTANCE_ACTION)
        match reply.status:
            case HTTPStatus.OK:
                return self._noticed(reply)
            case HTTPStatus.NOT_FOUND:
                await self._look_for_a_warning(asked_at)
                return Clear(self._warning)
            case status:
                raise SourceUnavailable(f"HTTP {status}")

    def _noticed(self, reply: Reply) -> Noticed:
        try:
            planned = msgspec.json.decode(reply.body, type=_InstanceAction)
            announced = read(planned.time.encode())
        except _MALFORMED as error:
            raise SourceUnavailable("malformed announcement") from error
        if announced is None:
            raise SourceUnavailable("malformed announcement")
        return Noticed(announced, seconds_left(announced, reply.date, self._clock.wall()), _MESSAGES[planned.action])

    async def _look_for_a_warning(self, asked_at: float) -> None:
        now = self._clock.monotonic()
        if now < self._warning_due or now - asked_at > _WARNING_SECONDS:
            return
        self._warning_due = now + _WARNING_EVERY
        try:
            async with asyncio.timeout(_WARNING_SECONDS):
                self._warning = _warning(await self._tokens.get(_REBALANCE), self._warning)
        except (SourceUnavailable, TimeoutError):
            # Unknown: what was warned of before still is.
            return


def _warning(reply: Reply, before: str) -> str:
    """What the service warns of; an answer that is no use changes nothing."""
    if reply.status == HTTPStatus.NOT_FOUND:
        return ""
    if reply.status != HTTPStatus.OK:
        return before
    try:
        since = read(msgspec.json.decode(reply.body, type=_Rebalance).noticeTime.encode())
    except _MALFORMED:
        return before
    return f"rebalance recommended since {since:%Y-%m-%dT%H:%M:%SZ}" if since else before
