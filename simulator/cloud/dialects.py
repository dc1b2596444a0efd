"""The metadata services of two clouds: the same few facts in two dialects."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus


class Cloud(StrEnum):
    """The simulated cloud, named like the agent's source."""

    ALIYUN = "aliyun"
    AWS = "aws"


METADATA_URLS: Mapping[Cloud, str] = {
    Cloud.ALIYUN: "NODE_AGENT_METADATA_URL",
    Cloud.AWS: "NODE_AGENT_AWS_METADATA_URL",
}
"""The agent's setting for the address of each metadata service."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Names and formats of one cloud.

    Attributes:
        token_header: Header that carries a token.
        ttl_header: Header that requests one, with its lifetime in seconds.
        tokenless: Response status if a required token is missing.
        announcement: Item that exists once a node has been noticed.
        write: Formats an announced instant, in Unix seconds, for that item.
        instance_id: Item with the instance id.
        warning: Item that exists while the cloud gives a warning without an announcement; empty if there is none.
        fixed: Items that are equal on all nodes.
    """

    token_header: str
    ttl_header: str
    tokenless: HTTPStatus
    announcement: str
    write: Callable[[float], str]
    instance_id: str
    warning: str
    fixed: Mapping[str, str]


def termination_time(deadline: float) -> str:
    """Format an instant like the clouds: UTC in whole seconds, rounded down so as not to promise more."""
    return datetime.fromtimestamp(math.floor(deadline), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rebalance(since: float) -> str:
    """Return the body of a warning given at that instant, in Unix seconds."""
    return json.dumps({"noticeTime": termination_time(since)})


def _instance_action(deadline: float) -> str:
    return json.dumps({"action": "terminate", "time": termination_time(deadline)})


DIALECTS: Mapping[Cloud, Dialect] = {
    Cloud.ALIYUN: Dialect(
        token_header="X-aliyun-ecs-metadata-token",  # noqa: S106  # A header's name.
        ttl_header="X-aliyun-ecs-metadata-token-ttl-seconds",
        tokenless=HTTPStatus.FORBIDDEN,
        announcement="instance/spot/termination-time",
        write=termination_time,
        instance_id="instance-id",
        warning="",
        fixed={
            "region-id": "cn-simulated",
            "zone-id": "cn-simulated-a",
            "instance/instance-type": "ecs.simulated.large",
        },
    ),
    Cloud.AWS: Dialect(
        token_header="X-aws-ec2-metadata-token",  # noqa: S106  # A header's name.
        ttl_header="X-aws-ec2-metadata-token-ttl-seconds",
        tokenless=HTTPStatus.UNAUTHORIZED,
        announcement="spot/instance-action",
        write=_instance_action,
        instance_id="instance-id",
        warning="events/recommendations/rebalance",
        fixed={
            "placement/region": "simulated-1",
            "placement/availability-zone": "simulated-1a",
            "instance-type": "simulated.large",
        },
    ),
}
