"""Source `tencent`: the metadata service of a Tencent Cloud CVM spot instance.

`…/spot/termination-time` has the instant of the release from two minutes before it, in the local time of China and
without a zone. The documentation shows it in three forms.
"""

import re
from datetime import UTC, datetime, timedelta, timezone

from node_agent.notices import SourceName
from node_agent.sources import PriceClass, SourceUnavailable, machine
from node_agent.sources.http import MetadataHttp, Reply
from node_agent.sources.termination_time import Service, TerminationTimeSource
from servicekit.clock import Clock

NAME = SourceName("tencent")

_CHINA = timezone(timedelta(hours=8))
# strptime alone also accepts other numbers of digits.
_FORMS = {
    re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"): "%Y-%m-%d %H:%M:%S",
    re.compile(rb"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d"): "%d/%m/%Y %H:%M:%S",
    re.compile(rb"\d{4}/\d\d?/\d\d? \d\d:\d\d:\d\d"): "%Y/%m/%d %H:%M:%S",
}


def parse(body: bytes) -> datetime | None:
    """Returns the announced instant; None where nothing is announced.

    Raises:
        SourceUnavailable: The text is neither empty nor a time such as `2018-08-18 12:05:33`.
    """
    text = body.strip()
    if not text:
        return None
    form = next((form for pattern, form in _FORMS.items() if pattern.fullmatch(text)), None)
    if form is None:
        raise SourceUnavailable("malformed announcement")
    try:
        # In UTC, as an instant in the first hours of year 1 has none: it overflows here and not later.
        return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=_CHINA).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise SourceUnavailable("malformed announcement") from error


_SERVICE = Service(
    name=NAME,
    item="spot/termination-time",
    identity=machine.Paths(
        cloud=NAME,
        uid="instance-id",
        region="placement/region",
        zone="placement/zone",
        instance_type="instance/instance-type",
        life_cycle="payment/charge-type",
        prices={
            "SPOTPAID": PriceClass.SPOT,
            "POSTPAID_BY_HOUR": PriceClass.ON_DEMAND,
            "PREPAID": PriceClass.ON_DEMAND,
        },
    ),
    parse=parse,
    is_own=lambda uid: re.fullmatch(r"ins-[0-9a-z]+", uid) is not None,
)


class TencentSource(TerminationTimeSource):
    """Asks the metadata service. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before `/latest` where a proxy or simulator has one.
        clock: For the lead time where the service's own clock is not known.
    """

    def __init__(self, base_url: str, clock: Clock) -> None:
        http = MetadataHttp(base_url, clock, root="/latest/meta-data")

        async def get(path: str) -> Reply:
            return await http.request("GET", path)

        super().__init__(_SERVICE, http, get, clock)
