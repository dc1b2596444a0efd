"""Source `volcengine`: the metadata service of a Volcengine or BytePlus ECS spot instance.

`…/spot_instance_termination_time` has the instant of the release from five minutes before it.
"""

import re

from node_agent.notices import SourceName
from node_agent.sources import MetadataMode, machine
from node_agent.sources.announcement import parse_with_zone
from node_agent.sources.http import MetadataHttp
from node_agent.sources.session_token import OptionalTokenClient, TokenHeaders
from node_agent.sources.termination_time import Service, TerminationTimeSource
from servicekit.clock import Clock

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


class VolcengineSource(TerminationTimeSource):
    """Asks the metadata service. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before `/latest` where a proxy or simulator has one.
        mode: Whether requests carry a session token.
        clock: For the age of the token, and for the lead time where the service's own clock is not known.
    """

    def __init__(self, base_url: str, mode: MetadataMode, clock: Clock) -> None:
        http = MetadataHttp(base_url, clock)
        super().__init__(_SERVICE, http, OptionalTokenClient(http, _HEADERS, mode, clock).get, clock)
