"""Source `aliyun`: the metadata service of an Alibaba Cloud ECS spot instance.

`…/instance/spot/termination-time` has the UTC instant of the release from five minutes before it.
"""

import re

from node_agent.notices import SourceName
from node_agent.sources import MetadataMode, machine
from node_agent.sources.announcement import parse
from node_agent.sources.http import MetadataHttp
from node_agent.sources.session_token import OptionalTokenClient, TokenHeaders
from node_agent.sources.termination_time import Service, TerminationTimeSource
from servicekit.clock import Clock

NAME = SourceName("aliyun")

_HEADERS = TokenHeaders(token="X-aliyun-ecs-metadata-token", ttl="X-aliyun-ecs-metadata-token-ttl-seconds")  # noqa: S106 - names
# Neither the metadata nor a label tells how long an instance is protected (SpotDuration).
_SERVICE = Service(
    name=NAME,
    item="meta-data/instance/spot/termination-time",
    identity=machine.Paths(
        cloud=NAME,
        uid="meta-data/instance-id",
        region="meta-data/region-id",
        zone="meta-data/zone-id",
        instance_type="meta-data/instance/instance-type",
    ),
    parse=parse,
    is_own=lambda uid: re.fullmatch(r"i-[0-9a-z]{8,}", uid) is not None,
)


class AliyunSource(TerminationTimeSource):
    """Asks the metadata service. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before `/latest` where a proxy or simulator has one.
        mode: Whether requests carry a session token.
        clock: For the age of the token, and for the lead time where the service's own clock is not known.
    """

    def __init__(self, base_url: str, mode: MetadataMode, clock: Clock) -> None:
        http = MetadataHttp(base_url, clock)
        super().__init__(_SERVICE, http, OptionalTokenClient(http, _HEADERS, mode, clock).get, clock)
