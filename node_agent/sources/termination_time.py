"""Sources `aliyun`, `tencent` and `volcengine`: ask a metadata service when the spot instance will be released.

One item has the instant; it answers with 404 or an empty body while no release is planned. Everything but that and the
instant, including refusals and time-outs, is unknown.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from http import HTTPStatus

from node_agent import metadata
from node_agent.notices import Answer, Clear, MachinePrice, MetadataMode, Noticed, SourceUnavailable
from servicekit.clock import Clock

_CHINA = timezone(timedelta(hours=8))
# strptime alone also accepts other numbers of digits.
_CHINESE_FORMS = {
    re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"): "%Y-%m-%d %H:%M:%S",
    re.compile(rb"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d"): "%d/%m/%Y %H:%M:%S",
    re.compile(rb"\d{4}/\d\d?/\d\d? \d\d:\d\d:\d\d"): "%Y/%m/%d %H:%M:%S",
}


def _parse_chinese_time(body: bytes) -> datetime | None:
    """Parses the announced instant; None if the service announces nothing.

    Raises:
        SourceUnavailable: The text is neither empty nor a time such as `2018-08-18 12:05:33`.
    """
    text = body.strip()
    if not text:
        return None
    form = next((form for pattern, form in _CHINESE_FORMS.items() if pattern.fullmatch(text)), None)
    if form is None:
        raise SourceUnavailable("malformed announcement")
    try:
        # In UTC, as an instant in the first hours of year 1 has none: it overflows here and not later.
        return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=_CHINA).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise SourceUnavailable("malformed announcement") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationService:
    """The metadata service of one cloud.

    Attributes:
        item: The path of the instant.
        parse: Reads the instant from an answer; None where nothing is announced. It raises `SourceUnavailable` for
            anything else.
        instance_id: An instance id of this cloud's.
        headers: For session tokens; None where the cloud has none.
        root: The path below which all items are.
    """

    item: str
    identity: metadata.IdentityPaths
    parse: Callable[[bytes], datetime | None]
    instance_id: re.Pattern[str]
    headers: metadata.TokenHeaders | None
    root: str = "/latest"


# Alibaba Cloud ECS: the UTC instant, from five minutes before the release. Neither the metadata nor a label tells how
# long an instance is protected (SpotDuration).
ALIYUN = TerminationService(
    item="meta-data/instance/spot/termination-time",
    identity=metadata.IdentityPaths(
        cloud="aliyun",
        uid="meta-data/instance-id",
        region="meta-data/region-id",
        zone="meta-data/zone-id",
        instance_type="meta-data/instance/instance-type",
    ),
    parse=metadata.parse_utc,
    instance_id=re.compile("i-[0-9a-z]{8,}"),
    headers=metadata.TokenHeaders(token="X-aliyun-ecs-metadata-token", ttl="X-aliyun-ecs-metadata-token-ttl-seconds"),  # noqa: S106 - names
)
# Tencent Cloud CVM: from two minutes before the release, in the local time of China and without a zone. The
# documentation shows it in three forms.
TENCENT = TerminationService(
    item="spot/termination-time",
    identity=metadata.IdentityPaths(
        cloud="tencent",
        uid="instance-id",
        region="placement/region",
        zone="placement/zone",
        instance_type="instance/instance-type",
        life_cycle="payment/charge-type",
        prices={
            "SPOTPAID": MachinePrice.SPOT,
            "POSTPAID_BY_HOUR": MachinePrice.ON_DEMAND,
            "PREPAID": MachinePrice.ON_DEMAND,
        },
    ),
    parse=_parse_chinese_time,
    instance_id=re.compile("ins-[0-9a-z]+"),
    headers=None,
    root="/latest/meta-data",
)
# Volcengine or BytePlus ECS: from five minutes before the release.
VOLCENGINE = TerminationService(
    item="spot_instance_termination_time",
    identity=metadata.IdentityPaths(
        cloud="volcengine",
        uid="instance_id",
        region="region_id",
        zone="availability_zone",
        instance_type="instance_type_id",
    ),
    # The documentation shows no example, so any zone is accepted; a time without one is not.
    parse=metadata.parse_with_zone,
    instance_id=re.compile("i-[0-9a-z]{8,}"),
    headers=metadata.TokenHeaders(token="X-volc-ecs-metadata-token", ttl="X-volc-ecs-metadata-token-ttl-seconds"),  # noqa: S106 - names
)


class TerminationTimeSource(metadata.MetadataSource):
    """Asks the metadata service of one of these clouds. Needs a running loop.

    Args:
        service: The cloud.
        base_url: Scheme and host of the service, with a path before `/latest` where a proxy or simulator has one.
        clock: For the age of the token, and for the lead time where the service's own clock is not known.
        mode: Whether requests carry a session token, where the cloud has tokens.
    """

    def __init__(
        self, service: TerminationService, base_url: str, clock: Clock, mode: MetadataMode = MetadataMode.PLAIN
    ) -> None:
        http = metadata.MetadataHttp(base_url, clock, root=service.root)
        get: metadata.Get = partial(http.request, "GET")
        if service.headers is not None:
            get = metadata.TokenClient(http, service.headers, mode, clock).get
        super().__init__(http, get, service.identity, clock)
        self._service = service

    async def recognize(self) -> bool:
        uid = await metadata.read_item(self._get, self._service.identity.uid)
        return self._service.instance_id.fullmatch(uid) is not None

    async def poll(self) -> Answer:
        reply = await self._get(self._service.item)
        if reply.status == HTTPStatus.NOT_FOUND:
            return Clear()
        if reply.status != HTTPStatus.OK:
            raise SourceUnavailable(f"HTTP {reply.status}")
        announced = self._service.parse(reply.body)
        if announced is None:
            return Clear()
        left = metadata.seconds_left(announced, reply.date, self._clock.wall())
        return Noticed(announced, left, "the spot instance will be released")
