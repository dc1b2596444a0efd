"""Source `aws`: asks the metadata service (IMDSv2) of an EC2 spot instance.

`…/spot/instance-action` answers with 404 while nothing is planned, and from two minutes before an interruption with
the action and its instant. `…/events/recommendations/rebalance` says that the risk has grown. It is a hint and no more:
most of these instances stay, and some are interrupted without it.
"""

import asyncio
import contextlib
import enum
from http import HTTPStatus

import msgspec

from node_agent import metadata
from node_agent.notices import Answer, Clear, MachinePrice, MetadataMode, Noticed, NoticeUrgency, SourceUnavailable
from servicekit.clock import Clock

_INSTANCE_ACTION = "meta-data/spot/instance-action"
_REBALANCE = "meta-data/events/recommendations/rebalance"
_DOMAIN = "meta-data/services/domain"
_DOMAINS = frozenset({"amazonaws.com", "amazonaws.com.cn", "amazonaws.eu", "c2s.ic.gov", "sc2s.sgov.gov"})
_HEADERS = metadata.TokenHeaders(token="X-aws-ec2-metadata-token", ttl="X-aws-ec2-metadata-token-ttl-seconds")  # noqa: S106 - names
_IDENTITY = metadata.IdentityPaths(
    cloud="aws",
    uid="meta-data/instance-id",
    region="meta-data/placement/region",
    zone="meta-data/placement/availability-zone",
    instance_type="meta-data/instance-type",
    life_cycle="meta-data/instance-life-cycle",
    prices={
        "spot": MachinePrice.SPOT,
        "on-demand": MachinePrice.ON_DEMAND,
        "scheduled": MachinePrice.ON_DEMAND,
        "capacity-block": MachinePrice.ON_DEMAND,
    },
)
# Seconds. The hint is asked for at most this often, and only after an answer about interruptions that took at most
# _HINT_SECONDS; the request for it may take as long. So a slow hint never costs such an answer.
_HINT_EVERY = 5.0
_HINT_SECONDS = 0.3
# Raised by msgspec and by the encoding of its strings. Some thousand brackets fit into the largest answer.
_MALFORMED = (msgspec.DecodeError, UnicodeError, RecursionError)


class _InterruptionAction(enum.StrEnum):
    TERMINATE = "terminate"
    STOP = "stop"
    HIBERNATE = "hibernate"


_MESSAGES = {
    _InterruptionAction.TERMINATE: "the spot instance will be terminated",
    _InterruptionAction.STOP: "the spot instance will be stopped",
    _InterruptionAction.HIBERNATE: "the spot instance will be hibernated",
}


class _InstanceAction(msgspec.Struct, frozen=True):
    action: _InterruptionAction
    time: str


class _Rebalance(msgspec.Struct, frozen=True):
    noticeTime: str  # noqa: N815 - the service's name


class AwsSource(metadata.MetadataSource):
    """Asks the metadata service, always with a token. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before `/latest` where a proxy or simulator has one.
        clock: For the age of the token, and for the lead time where the service's own clock is not known.
    """

    def __init__(self, base_url: str, clock: Clock) -> None:
        http = metadata.MetadataHttp(base_url, clock)
        super().__init__(http, metadata.TokenClient(http, _HEADERS, MetadataMode.HARDENED, clock).get, _IDENTITY, clock)
        self._hint: Answer = Clear()
        self._hint_due = clock.monotonic()

    async def recognize(self) -> bool:
        """Compares the domain name, because other clouds answer some of the same requests with another domain."""
        return (await metadata.read_item(self._get, _DOMAIN)) in _DOMAINS

    async def poll(self) -> Answer:
        asked_at = self._clock.monotonic()
        reply = await self._get(_INSTANCE_ACTION)
        if reply.status == HTTPStatus.NOT_FOUND:
            await self._update_hint(asked_at)
            return self._hint
        if reply.status != HTTPStatus.OK:
            raise SourceUnavailable(f"HTTP {reply.status}")
        try:
            planned = msgspec.json.decode(reply.body, type=_InstanceAction)
            announced = metadata.parse_utc(planned.time.encode())
        except _MALFORMED as error:
            raise SourceUnavailable("malformed announcement") from error
        if announced is None:
            raise SourceUnavailable("malformed announcement")
        return Noticed(
            announced, metadata.seconds_left(announced, reply.date, self._clock.wall()), _MESSAGES[planned.action]
        )

    async def _update_hint(self, asked_at: float) -> None:
        now = self._clock.monotonic()
        if now < self._hint_due or now - asked_at > _HINT_SECONDS:
            return
        self._hint_due = now + _HINT_EVERY
        # Where the answer is unknown or unusable, the hint stays as it was.
        with contextlib.suppress(SourceUnavailable, TimeoutError, *_MALFORMED):
            async with asyncio.timeout(_HINT_SECONDS):
                reply = await self._get(_REBALANCE)
            self._hint = _read_hint(reply)


def _read_hint(reply: metadata.MetadataReply) -> Answer:
    """Reads the rebalance recommendation from an answer.

    Raises:
        SourceUnavailable: The answer is not usable; it may also raise one of `_MALFORMED`.
    """
    if reply.status == HTTPStatus.NOT_FOUND:
        return Clear()
    if reply.status != HTTPStatus.OK:
        raise SourceUnavailable(f"HTTP {reply.status}")
    since = metadata.parse_utc(msgspec.json.decode(reply.body, type=_Rebalance).noticeTime.encode())
    if since is None:
        raise SourceUnavailable("malformed recommendation")
    message = f"rebalance recommended since {since:%Y-%m-%dT%H:%M:%SZ}"
    return Noticed(None, None, message, NoticeUrgency.HINT, cancellable=True)
