"""The metadata services of six clouds: the same few facts in six dialects."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from enum import StrEnum
from http import HTTPStatus


class SimulatedCloud(StrEnum):
    """The simulated cloud, named like the agent's source."""

    ALIYUN = "aliyun"
    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"
    TENCENT = "tencent"
    VOLCENGINE = "volcengine"


METADATA_URLS: Mapping[SimulatedCloud, str] = {
    SimulatedCloud.ALIYUN: "NODE_AGENT_METADATA_URL",
    SimulatedCloud.AWS: "NODE_AGENT_AWS_METADATA_URL",
    SimulatedCloud.AZURE: "NODE_AGENT_AZURE_METADATA_URL",
    SimulatedCloud.GCP: "NODE_AGENT_GCP_METADATA_URL",
    SimulatedCloud.TENCENT: "NODE_AGENT_TENCENT_METADATA_URL",
    SimulatedCloud.VOLCENGINE: "NODE_AGENT_VOLCENGINE_METADATA_URL",
}
"""The agent's setting for the address of each metadata service."""


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """What a service knows of one instance: `number` is a part of its id; instants are in Unix seconds."""

    node: str
    number: str
    deadline: float | None = None
    warned_at: float | None = None
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class MetadataDialect:
    """Names and formats of one cloud.

    Attributes:
        items: All items of an instance, by their paths below the root.
        announcement: The item that an agent asks for notices.
        root: The path below which the items are.
        token_header: Header that carries a token; empty if there are no tokens.
        ttl_header: Header that requests one, with its lifetime in seconds.
        tokenless: Response status if a required token is missing.
        always_token: Whether a token is required in every mode.
        warning: The item that exists while the cloud gives a warning without an announcement; empty if there is none.
        required: Headers that each request must have.
        version: Whether each request must name a version of the API.
        answered: Headers of each answer.
    """

    items: Callable[[InstanceFacts], Mapping[str, str]]
    announcement: str
    root: str = "/latest/meta-data"
    token_header: str = ""
    ttl_header: str = ""
    tokenless: HTTPStatus = HTTPStatus.FORBIDDEN
    always_token: bool = False
    warning: str = ""
    required: Mapping[str, str] = field(default_factory=dict)
    version: bool = False
    answered: Mapping[str, str] = field(default_factory=dict)


def termination_time(deadline: float) -> str:
    """Format an instant like the clouds: UTC in whole seconds, rounded down so as not to promise more."""
    return datetime.fromtimestamp(math.floor(deadline), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rebalance(since: float) -> str:
    return json.dumps({"noticeTime": termination_time(since)})


def _instance_action(deadline: float) -> str:
    return json.dumps({"action": "terminate", "time": termination_time(deadline)})


def _in_china(deadline: float) -> str:
    local = datetime.fromtimestamp(math.floor(deadline), tz=UTC) + timedelta(hours=8)
    return local.strftime("%Y-%m-%d %H:%M:%S")


def _only(item: str, write: Callable[[float], str], at: float | None) -> dict[str, str]:
    """Return the item if there is something to announce."""
    return {} if at is None else {item: write(at)}


def _aliyun(facts: InstanceFacts) -> Mapping[str, str]:
    return {
        "instance-id": f"i-{facts.number}",
        "region-id": "cn-simulated",
        "zone-id": "cn-simulated-a",
        "instance/instance-type": "ecs.simulated.large",
        **_only("instance/spot/termination-time", termination_time, facts.deadline),
    }


def _aws(facts: InstanceFacts) -> Mapping[str, str]:
    return {
        "instance-id": f"i-{facts.number}",
        "services/domain": "amazonaws.com",
        "placement/region": "simulated-1",
        "placement/availability-zone": "simulated-1a",
        "instance-type": "simulated.large",
        "instance-life-cycle": "spot",
        # Always there: aws-node-termination-handler takes its absence for a fault, and ends.
        "events/maintenance/scheduled": "[]",
        **_only("spot/instance-action", _instance_action, facts.deadline),
        **_only("events/recommendations/rebalance", _rebalance, facts.warned_at),
    }


def _azure(facts: InstanceFacts) -> Mapping[str, str]:
    compute = {
        "vmId": f"{facts.number[:8]}-0000-4000-8000-{facts.number[:12]:0<12}",
        "name": facts.node,
        "azEnvironment": "AzurePublicCloud",
        "location": "simulated",
        "zone": "1",
        "vmSize": "Standard_Simulated",
        "priority": "Spot",
    }
    items = {f"instance/compute/{name}": value for name, value in compute.items()}
    return {**items, "scheduledevents": json.dumps({"DocumentIncarnation": 1, "Events": _azure_events(facts)})}


def _azure_events(facts: InstanceFacts) -> list[dict[str, object]]:
    """The events of a whole scale set: each VM sees those of its neighbours."""
    events = [_azure_event("Preempt", f"not-{facts.node}", "Scheduled", 0.0)]
    if facts.deadline is not None:
        status = "Started" if facts.acknowledged else "Scheduled"
        events.append(_azure_event("Preempt", facts.node, status, facts.deadline))
    if facts.warned_at is not None:
        events.append(_azure_event("Freeze", facts.node, "Scheduled", facts.warned_at))
    return events


def _azure_event(kind: str, vm: str, status: str, not_before: float) -> dict[str, object]:
    return {
        "EventId": f"{kind}-{vm}",
        "EventType": kind,
        "EventStatus": status,
        "ResourceType": "VirtualMachine",
        "Resources": [vm],
        "NotBefore": formatdate(math.floor(not_before), usegmt=True) if status == "Scheduled" else "",
        "EventSource": "Platform",
    }


def _gcp(facts: InstanceFacts) -> Mapping[str, str]:
    return {
        "instance/id": str(int(facts.number, 16)),
        "instance/zone": "projects/1/zones/simulated1-a",
        "instance/machine-type": "projects/1/machineTypes/n2-simulated-4",
        "instance/scheduling/preemptible": "TRUE",
        "instance/preempted": "FALSE" if facts.deadline is None else "TRUE",
        "instance/maintenance-event": "NONE" if facts.warned_at is None else "MIGRATE_ON_HOST_MAINTENANCE",
        "instance/upcoming-maintenance": '{ "error": "no notifications have been received yet, try again later" }',
    }


def _tencent(facts: InstanceFacts) -> Mapping[str, str]:
    return {
        "instance-id": f"ins-{facts.number[:8]}",
        "placement/region": "ap-simulated",
        "placement/zone": "ap-simulated-1",
        "instance/instance-type": "S.SIMULATED4",
        "payment/charge-type": "SPOTPAID",
        **_only("spot/termination-time", _in_china, facts.deadline),
    }


def _volcengine(facts: InstanceFacts) -> Mapping[str, str]:
    return {
        "instance_id": f"i-{facts.number}",
        "region_id": "cn-simulated",
        "availability_zone": "cn-simulated-a",
        "instance_type_id": "ecs.simulated.large",
        **_only("spot_instance_termination_time", termination_time, facts.deadline),
    }


DIALECTS: Mapping[SimulatedCloud, MetadataDialect] = {
    SimulatedCloud.ALIYUN: MetadataDialect(
        items=_aliyun,
        announcement="instance/spot/termination-time",
        token_header="X-aliyun-ecs-metadata-token",  # noqa: S106  # A header's name.
        ttl_header="X-aliyun-ecs-metadata-token-ttl-seconds",
    ),
    SimulatedCloud.AWS: MetadataDialect(
        items=_aws,
        announcement="spot/instance-action",
        token_header="X-aws-ec2-metadata-token",  # noqa: S106  # A header's name.
        ttl_header="X-aws-ec2-metadata-token-ttl-seconds",
        tokenless=HTTPStatus.UNAUTHORIZED,
        always_token=True,
        warning="events/recommendations/rebalance",
    ),
    SimulatedCloud.AZURE: MetadataDialect(
        items=_azure,
        announcement="scheduledevents",
        root="/metadata",
        required={"Metadata": "true"},
        version=True,
    ),
    SimulatedCloud.GCP: MetadataDialect(
        items=_gcp,
        announcement="instance/preempted",
        root="/computeMetadata/v1",
        required={"Metadata-Flavor": "Google"},
        answered={"Metadata-Flavor": "Google"},
    ),
    SimulatedCloud.TENCENT: MetadataDialect(items=_tencent, announcement="spot/termination-time"),
    SimulatedCloud.VOLCENGINE: MetadataDialect(
        items=_volcengine,
        announcement="spot_instance_termination_time",
        root="/latest",
        token_header="X-volc-ecs-metadata-token",  # noqa: S106  # A header's name.
        ttl_header="X-volc-ecs-metadata-token-ttl-seconds",
    ),
}
