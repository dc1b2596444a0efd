"""Reads the operator's settings from the variables `TRAININGJOB_OPERATOR_…`."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from servicekit import address
from servicekit.logs import LogFormat, LogLevel
from servicekit.settings import check_field
from trainingjob_operator.groups import Gang

PREFIX = "TRAININGJOB_OPERATOR_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJobOperatorSettings:
    """The settings, each with its default, unit and reason."""

    kubeconfig: Annotated[str, Meta(description="The cluster. Empty: that of this pod, or else of ~/.kube/config.")] = (
        ""
    )
    namespace: Annotated[str, Meta(max_length=63, description="The namespace of the jobs. Empty: all namespaces.")] = ""
    lease: Annotated[
        str, Meta(description="Name of the Lease by which one of several operators is elected. Empty: no election.")
    ] = ""
    lease_namespace: Annotated[
        str, Meta(max_length=63, description="The namespace of the Lease. Empty: that of the pod or the kubeconfig.")
    ] = ""
    lease_seconds: Annotated[
        int, Meta(ge=3, le=300, description="Seconds after which another operator takes over from one that is gone.")
    ] = 15
    pod_name: Annotated[str, Meta(max_length=253, description="The name of this pod, for the holder of the Lease.")] = (
        ""
    )
    gang: Annotated[
        Gang,
        Meta(
            description="The gang scheduler whose PodGroups are made: volcano, coscheduling (of the scheduler plugins) "
            "or koordinator."
        ),
    ] = Gang.NONE
    request_seconds: Annotated[
        float, Meta(gt=0, le=300, description="Seconds that a request to the API server may take.")
    ] = 10.0
    metrics_address: Annotated[str, Meta(description="host:port of GET /metrics. Empty: no metrics.")] = ""
    probe_address: Annotated[str, Meta(description="host:port of the probes. Empty: no probes.")] = ""
    log_format: Annotated[LogFormat, Meta(description="json or console.")] = LogFormat.JSON
    log_level: Annotated[LogLevel, Meta(description="debug, info, warning or error.")] = LogLevel.INFO

    def __post_init__(self) -> None:
        for field in ("metrics_address", "probe_address"):
            if getattr(self, field):
                check_field(field, getattr(self, field), address.parse)
