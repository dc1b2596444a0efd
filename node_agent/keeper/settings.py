"""Reads the keeper's settings from the variables `STATE_KEEPER_…`."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from servicekit import address, settings
from servicekit.kubernetes.access import SERVICE_ACCOUNT_DIR
from servicekit.logs import LogFormat, LogLevel

PREFIX = "STATE_KEEPER"

_MAX_BYTES = 2**50


class KeeperAuthentication(enum.StrEnum):
    """How the keeper knows the tenant of a request."""

    KUBERNETES = "kubernetes"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """The settings, each with its default, unit and reason."""

    directory: Annotated[
        Path,
        Meta(
            description="Directory for states, in a tmpfs; it is made if it is missing. Only one keeper uses it, and "
            "only its user may read it."
        ),
    ]
    bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=_MAX_BYTES,
            description="The most bytes that are kept at once. They are memory of this host, so leave the rest to what "
            "runs here.",
        ),
    ]
    tenant_bytes: Annotated[
        int,
        Meta(ge=0, le=_MAX_BYTES, description="The most bytes of one tenant, a namespace. 0: as many as of the host."),
    ] = 0
    seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=7 * 86400.0,
            description="Seconds that anything is kept at most, whatever a job asks for: the longest max-wait that is "
            "worth the memory.",
        ),
    ] = 3600.0
    address: Annotated[
        str,
        Meta(description="host:port for states, over plain HTTP; port 0 picks a free port."),
    ] = "0.0.0.0:8476"
    authentication: Annotated[
        KeeperAuthentication,
        Meta(
            description="kubernetes: the API server reviews the token of the pod, and its namespace is the tenant. "
            "none: everybody who reaches the address may send states, for hosts of one owner without Kubernetes."
        ),
    ] = KeeperAuthentication.KUBERNETES
    audience: Annotated[
        str,
        Meta(min_length=1, description="The audience that tokens must have, the supervisor's TOKEN_AUDIENCE."),
    ] = "job-supervisor.kube-ai.io"
    account_dir: Annotated[
        Path, Meta(description="Directory of the keeper's own service account: token, ca.crt and namespace.")
    ] = SERVICE_ACCOUNT_DIR
    api_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=60.0,
            description="An API server that does not answer within this time counts as unavailable, and the request "
            "that waits for it is answered with 503.",
        ),
    ] = 5.0
    probe_address: Annotated[
        str, Meta(description="host:port for /livez and /readyz; port 0 picks a free port, empty disables them.")
    ] = ""
    metrics_address: Annotated[
        str,
        Meta(
            description="host:port for /metrics, without TLS and without a token; port 0 picks a free port, empty "
            "disables them."
        ),
    ] = ""
    log_format: Annotated[LogFormat, Meta(description="console, json, or auto: console on a terminal, else json.")] = (
        LogFormat.AUTO
    )
    log_level: Annotated[LogLevel, Meta(description="The least severe level that is logged.")] = LogLevel.INFO

    def __post_init__(self) -> None:
        settings.check_field("address", self.address, address.parse)
        for field, served in (("probe_address", self.probe_address), ("metrics_address", self.metrics_address)):
            if served:
                settings.check_field(field, served, address.parse)


def load(environ: Mapping[str, str]) -> KeeperSettings:
    """Reads the settings.

    Raises:
        SettingsError: A setting is unknown, missing or invalid.
    """
    return settings.load(KeeperSettings, PREFIX, environ)
