"""How each cloud's metadata are asked and answer: two dialects of the same few facts."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus


class Cloud(StrEnum):
    """Whose metadata are simulated; named as the agent's sources are."""

    ALIYUN = "aliyun"
    AWS = "aws"


METADATA_URLS: Mapping[Cloud, str] = {
    Cloud.ALIYUN: "NODE_AGENT_METADATA_URL",
    Cloud.AWS: "NODE_AGENT_AWS_METADATA_URL",
}
"""The agent's setting that names where each is asked."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One cloud's names and forms.

    Attributes:
        token_header: The header that carries a token.
        ttl_header: The header that asks for one, with its lifetime in seconds.
        tokenless: The status of an answer to who should have had a token and had none.
        announcement: The item that is there once a node has been noticed.
        write: An announced instant, in Unix seconds, as that item says it.
        instance_id: The item that names the instance.
        warning: The item that is there while the cloud warns of more than it announces; empty where it never does.
        fixed: Items that are the same on every node.
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
    """Write an instant as the clouds do: UTC, whole seconds, rounded down so that nobody is promised more."""
    return datetime.fromtimestamp(math.floor(deadline), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rebalance(since: float) -> str:
    """The body of a warning that was given at that instant, in Unix seconds."""
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
