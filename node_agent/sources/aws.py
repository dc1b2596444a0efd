"""Source `aws`: the metadata service (IMDSv2) of an EC2 spot instance.

`…/spot/instance-action` answers with 404 while nothing is planned, and from two minutes before an interruption with
the action and its instant. `…/events/recommendations/rebalance` says that the risk has grown. It is a hint and no more:
most of these instances stay, and some are interrupted without it.
"""

import asyncio
import enum
from http import HTTPStatus

import msgspec

from node_agent.notices import NoticeClass, SourceName
from node_agent.sources import Answer, Clear, NodeIdentity, Noticed, PriceClass, SourceUnavailable, machine
from node_agent.sources.announcement import parse
from node_agent.sources.http import MetadataHttp, Reply
from node_agent.sources.lead import seconds_left
from node_agent.sources.session_token import TokenClient, TokenHeaders
from servicekit.clock import Clock

NAME = SourceName("aws")

_INSTANCE_ACTION = "meta-data/spot/instance-action"
_REBALANCE = "meta-data/events/recommendations/rebalance"
_DOMAIN = "meta-data/services/domain"
_DOMAINS = frozenset({"amazonaws.com", "amazonaws.com.cn", "amazonaws.eu", "c2s.ic.gov", "sc2s.sgov.gov"})
_HEADERS = TokenHeaders(token="X-aws-ec2-metadata-token", ttl="X-aws-ec2-metadata-token-ttl-seconds")  # noqa: S106 - names
_IDENTITY = machine.Paths(
    cloud=NAME,
    uid="meta-data/instance-id",
    region="meta-data/placement/region",
    zone="meta-data/placement/availability-zone",
    instance_type="meta-data/instance-type",
    life_cycle="meta-data/instance-life-cycle",
    prices={
        "spot": PriceClass.SPOT,
        "on-demand": PriceClass.ON_DEMAND,
        "scheduled": PriceClass.ON_DEMAND,
        "capacity-block": PriceClass.ON_DEMAND,
    },
)
# Seconds. The hint is asked for at most this often, and only after an answer about interruptions that took at most
# _HINT_SECONDS; the request for it may take as long. So a slow hint never costs such an answer.
_HINT_EVERY = 5.0
_HINT_SECONDS = 0.3
# Raised by msgspec and by the encoding of its strings. Some thousand brackets fit into the largest answer.
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
        self._hint: Answer = Clear()
        self._hint_due = clock.monotonic()

    @property
    def name(self) -> SourceName:
        return NAME

    async def close(self) -> None:
        await self._http.close()

    async def identify(self) -> NodeIdentity:
        if self._identity is None:
            self._identity = await machine.identify(self._tokens.get, _IDENTITY)
        return self._identity

    async def recognize(self) -> bool:
        """Other clouds answer some of the same requests, but in another domain."""
        return (await machine.item(self._tokens.get, _DOMAIN)) in _DOMAINS

    async def poll(self) -> Answer:
        asked_at = self._clock.monotonic()
        reply = await self._tokens.get(_INSTANCE_ACTION)
        match reply.status:
            case HTTPStatus.OK:
                return self._noticed(reply)
            case HTTPStatus.NOT_FOUND:
                await self._update_hint(asked_at)
                return self._hint
            case status:
                raise SourceUnavailable(f"HTTP {status}")

    def _noticed(self, reply: Reply) -> Noticed:
        try:
            planned = msgspec.json.decode(reply.body, type=_InstanceAction)
            announced = parse(planned.time.encode())
        except _MALFORMED as error:
            raise SourceUnavailable("malformed announcement") from error
        if announced is None:
            raise SourceUnavailable("malformed announcement")
        return Noticed(announced, seconds_left(announced, reply.date, self._clock.wall()), _MESSAGES[planned.action])

    async def _update_hint(self, asked_at: float) -> None:
        now = self._clock.monotonic()
        if now < self._hint_due or now - asked_at > _HINT_SECONDS:
            return
        self._hint_due = now + _HINT_EVERY
        try:
            async with asyncio.timeout(_HINT_SECONDS):
                self._hint = _hint(await self._tokens.get(_REBALANCE), self._hint)
        except (SourceUnavailable, TimeoutError):
            # Unknown: the hint stays as it was.
            return


def _hint(reply: Reply, before: Answer) -> Answer:
    """Returns what an answer recommends; an unusable answer keeps what was known before."""
    if reply.status == HTTPStatus.NOT_FOUND:
        return Clear()
    if reply.status != HTTPStatus.OK:
        return before
    try:
        since = parse(msgspec.json.decode(reply.body, type=_Rebalance).noticeTime.encode())
    except _MALFORMED:
        return before
    if since is None:
        return before
    message = f"rebalance recommended since {since:%Y-%m-%dT%H:%M:%SZ}"
    return Noticed(None, None, message, NoticeClass.HINT, cancellable=True)
