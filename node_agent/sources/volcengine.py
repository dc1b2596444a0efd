"""Source `volcengine`: the metadata service of a Volcengine or BytePlus ECS spot instance.

`…/spot_instance_termination_time` has the instant of the release from five minutes before it.
"""

import re

from node_agent.notices import SourceName
from node_agent.sources import machine
from node_agent.sources.announcement import parse_with_zone
from node_agent.sources.session_token import TokenHeaders
from node_agent.sources.termination_time import OptionalTokenSource, Service

NAME = SourceName("volcengine")

_HEADERS = TokenHeaders(token="X-volc-ecs-metadata-token", ttl="X-volc-ecs-metadata-token-ttl-seconds")  # noqa: S106 - names
_SERVICE = Service(
    name=NAME,
    item="spot_instance_termination_time",
    identity=machine.Paths(
        cloud=NAME,
        uid="instance_id",
        region="region_id",
        zone="availability_zone",
        instance_type="instance_type_id",
    ),
    # The documentation shows no example, so any zone is accepted; a time without one is not.
    parse=parse_with_zone,
    is_own=lambda uid: re.fullmatch(r"i-[0-9a-z]{8,}", uid) is not None,
)


class VolcengineSource(OptionalTokenSource):
    """The source of one instance."""

    SERVICE = _SERVICE
    HEADERS = _HEADERS
