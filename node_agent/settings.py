"""What can be set, by variables `NODE_AGENT_…`."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from node_agent.failpoints import At
from node_agent.sources.aliyun import MetadataMode
from servicekit import address, failpoints, settings
from servicekit.kubernetes.access import SERVICE_ACCOUNT_DIR
from servicekit.logs import LogFormat, LogLevel

PREFIX = "NODE_AGENT"


class PodsMode(enum.StrEnum):
    """Whether the pods of the node are watched."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class SourceKind(enum.StrEnum):
    """The sources there are."""

    ALIYUN = "aliyun"
    AWS = "aws"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, with its default, unit and reason."""

    node_name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$",
            description="The node's name, as the token and the launcher's host list have it.",
        ),
    ]
    supervisor: Annotated[str, Meta(description="host:port of the supervisor's agent port.")]
    token_file: Annotated[Path, Meta(description="The agent's token; read again at each connection.")]
    ca_file: Annotated[
        Path | None,
        Meta(description="Who signed the supervisor's certificate. Empty: no TLS, which only loopback may have."),
    ] = None
    node_uid: Annotated[
        str,
        Meta(
            max_length=128,
            pattern=r"^[!-~]*$",
            description="The machine's id. Empty: from the first source that knows it. Set it to the node's name where "
            "none does, knowing that a new machine under an old name is then taken for the old one.",
        ),
    ] = ""
    sources: Annotated[
        tuple[SourceKind, ...],
        Meta(
            min_length=1,
            description="Who announces reclaims, with commas between. New workers start on a node only while all "
            "of them answer, so name none that is not there.",
        ),
    ] = (SourceKind.ALIYUN,)
    metadata_url: Annotated[
        str, Meta(description="Base address that `aliyun` asks; the default is link-local to an ECS instance.")
    ] = "http://100.100.100.200"
    metadata_mode: Annotated[
        MetadataMode,
        Meta(description="plain, hardened (with session tokens), or auto: plain until it is refused."),
    ] = MetadataMode.AUTO
    aws_metadata_url: Annotated[
        str,
        Meta(
            description="Base address that `aws` asks; http://[fd00:ec2::254] where the instance has IPv6 only. "
            "An agent without the host's network needs a hop limit of 2 on the instance: with 1, no token reaches it."
        ),
    ] = "http://169.254.169.254"
    file_path: Annotated[Path | None, Meta(description="The file that the source `file` reads.")] = None
    pods: Annotated[
        PodsMode,
        Meta(
            description="Whether the node's opted-in pods are watched for eviction, through the API server of the "
            "agent's own pod. auto: where the agent is a pod with an account; on: and do not start elsewhere."
        ),
    ] = PodsMode.AUTO
    not_spot_labels: Annotated[
        tuple[Annotated[str, Meta(pattern="^[^=]+=")], ...],
        Meta(
            description="NAME=VALUE of the node's labels, with commas between: on a node with any of them no cloud is "
            "asked, as it has nothing to announce. Seen where pods are watched."
        ),
    ] = ("node.alibabacloud.com/spot-strategy=NoSpot",)
    account_dir: Annotated[
        Path, Meta(description="The account that the agent's pod speaks with: token, ca.crt and namespace.")
    ] = SERVICE_ACCOUNT_DIR
    api_timeout_seconds: Annotated[
        float, Meta(gt=0, le=60.0, description="An API server that has not answered a request by then counts as away.")
    ] = 5.0
    poll_seconds: Annotated[
        float,
        Meta(ge=0.02, le=1.0, description="Seconds between polls: what is promised about latency rests on 1 at most."),
    ] = 1.0
    max_lead_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=366 * 86400.0,
            description="An announcement further ahead than this counts as unknown, and is acted upon once it is "
            "nearer: clouds announce minutes ahead, and a job should not stop now for the year 9999.",
        ),
    ] = 3600.0
    outbox_limit: Annotated[
        int, Meta(ge=1, le=100_000, description="Most notices kept; a node has two, and a few hundred with its pods.")
    ] = 1024
    heartbeat_seconds: Annotated[
        float,
        Meta(
            ge=0.05,
            le=60.0,
            description="Seconds between heartbeats until the supervisor names its own; three are silence.",
        ),
    ] = 5.0
    probe_address: Annotated[
        str, Meta(description="host:port of /livez and /readyz; port 0 takes a free one, empty turns them off.")
    ] = ""
    metrics_address: Annotated[
        str,
        Meta(
            description="host:port of /metrics for Prometheus, without TLS and without a token; port 0 takes a free "
            "one, empty turns them off."
        ),
    ] = ""
    log_format: Annotated[LogFormat, Meta(description="console or json.")] = LogFormat.JSON
    log_level: Annotated[LogLevel, Meta(description="The least important line that is written.")] = LogLevel.INFO
    failpoint: Annotated[
        str, Meta(description="For tests: NAME[:NTH][@USR1], where this process kills itself; see docs/adr/0011.")
    ] = ""

    def __post_init__(self) -> None:
        settings.checked("supervisor", self.supervisor, address.parse)
        if self.ca_file is None and not address.parse(self.supervisor).is_loopback:
            raise ValueError(
                "SUPERVISOR is not on loopback, so CA_FILE must be set: the token would travel in the open"
            )
        for field, served in (("probe_address", self.probe_address), ("metrics_address", self.metrics_address)):
            if served:
                settings.checked(field, served, address.parse)
        settings.checked("failpoint", self.failpoint, lambda text: failpoints.parse(text, At))
        _check_sources(self)


def _check_sources(chosen: Settings) -> None:
    if len(set(chosen.sources)) != len(chosen.sources):
        raise ValueError("SOURCES names one twice")
    if SourceKind.FILE in chosen.sources and chosen.file_path is None:
        raise ValueError("FILE_PATH must be set for the source `file`")
    if set(chosen.sources) == {SourceKind.FILE} and not chosen.node_uid:
        raise ValueError("NODE_UID must be set: no source knows the machine's id")
    settings.checked("metadata_url", chosen.metadata_url, _check_url)
    settings.checked("aws_metadata_url", chosen.aws_metadata_url, _check_url)


def _check_url(text: str) -> None:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
        raise ValueError(f"{text!r} is not http://host or http://host/path")


def load(environ: Mapping[str, str]) -> Settings:
    """Read the settings.

    Raises:
        SettingsError: Something is unknown, missing or bad.
    """
    return settings.load(Settings, PREFIX, environ)
