"""Source `aliyun`: the metadata service of an Alibaba Cloud ECS spot instance.

`…/instance/spot/termination-time` has the UTC instant of the release from five minutes before it.
"""

import re

from node_agent.notices import SourceName
from node_agent.sources import machine
from node_agent.sources.announcement import parse
from node_agent.sources.session_token import TokenHeaders
from node_agent.sources.termination_time import OptionalTokenSource, Service

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


class AliyunSource(OptionalTokenSource):
    """The source of one instance."""

    SERVICE = _SERVICE
    HEADERS = _HEADERS
