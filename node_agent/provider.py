"""Tells a node's cloud by its `spec.providerID`, which the cloud's controller has written. Pure."""

import re

from node_agent.notices import SourceName

_PREFIXES = {
    "aws://": SourceName("aws"),
    "gce://": SourceName("gcp"),
    "azure://": SourceName("azure"),
    "qcloud://": SourceName("tencent"),
}
# Such as `cn-beijing.i-2ze0a1b2c3d4`.
_ALIYUN = re.compile(r"(alicloud://)?[a-z]{2}-[a-z0-9-]+\.i-[0-9a-z]+")


def cloud_of(provider_id: str) -> SourceName | None:
    """Returns the source of the cloud; None where the id names none that has a source."""
    if _ALIYUN.fullmatch(provider_id):
        return SourceName("aliyun")
    return next((source for prefix, source in _PREFIXES.items() if provider_id.startswith(prefix)), None)
