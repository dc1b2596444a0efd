"""Reads the agent's settings from the variables `NODE_AGENT_…`."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from node_agent.notices import AgentFailpoint, MetadataMode
from servicekit import address, failpoints, settings
from servicekit.kubernetes.access import SERVICE_ACCOUNT_DIR
from servicekit.logs import LogFormat, LogLevel

PREFIX = "NODE_AGENT"


class PodsMode(enum.StrEnum):
    """Whether the agent watches the pods of its node."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class SourceKind(enum.StrEnum):
    """Names of the sources. AUTO: the source of the cloud that the node turns out to be on."""

    AUTO = "auto"
    ALIYUN = "aliyun"
    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"
    TENCENT = "tencent"
    VOLCENGINE = "volcengine"
    FILE = "file"


_LEAST_WATCHDOG = 1.0

_URLS = (
    "metadata_url",
    "aws_metadata_url",
    "azure_metadata_url",
    "gcp_metadata_url",
    "tencent_metadata_url",
    "volcengine_metadata_url",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings, each with its default, unit and reason."""

    node_name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$",
            description="The node's name, as in the agent's token and in the launcher's host list.",
        ),
    ]
    supervisor: Annotated[str, Meta(description="host:port of the supervisor's agent port.")]
    token_file: Annotated[Path, Meta(description="File with the agent's token; read again for each connection.")]
    ca_file: Annotated[
        Path | None,
        Meta(description="CA file for the supervisor's certificate. Empty: no TLS, which is allowed on loopback only."),
    ] = None
    node_uid: Annotated[
        str,
        Meta(
            max_length=128,
            pattern=r"^[!-~]*$",
            description="The machine's id. Empty: from the first source that knows it. Where none does, set it to the "
            "node's name; a new machine with an old name is then taken for the old one.",
        ),
    ] = ""
    sources: Annotated[
        tuple[SourceKind, ...],
        Meta(
            min_length=1,
            description="Sources of announcements, separated by commas. auto: the cloud that the node turns out to be "
            "on; a node without a cloud takes workers, as nothing is announced there. New workers start on a node only "
            "while all of its sources answer, so name no cloud that is not there.",
        ),
    ] = (SourceKind.AUTO,)
    metadata_url: Annotated[
        str, Meta(description="Base URL for the source `aliyun`; the default is link-local on an ECS instance.")
    ] = "http://100.100.100.200"
    metadata_mode: Annotated[
        MetadataMode,
        Meta(description="plain, hardened (with session tokens), or auto: plain until a request is refused."),
    ] = MetadataMode.AUTO
    aws_metadata_url: Annotated[
        str,
        Meta(
            description="Base URL for the source `aws`; http://[fd00:ec2::254] where the instance has IPv6 only. "
            "An agent without the host's network needs a hop limit of 2 on the instance: with 1, no token reaches it."
        ),
    ] = "http://169.254.169.254"
    azure_metadata_url: Annotated[
        str, Meta(description="Base URL for the source `azure`; the default is link-local on a VM.")
    ] = "http://169.254.169.254"
    azure_acknowledge: Annotated[
        bool,
        Meta(
            description="Whether to acknowledge a scheduled event of an Azure VM as soon as no opted-in pod is left on "
            "its node. Azure then starts it at once, whatever else runs there. The agent must watch pods."
        ),
    ] = False
    gcp_metadata_url: Annotated[
        str, Meta(description="Base URL for the source `gcp`; by address, so that a name server cannot delay a notice.")
    ] = "http://169.254.169.254"
    tencent_metadata_url: Annotated[
        str, Meta(description="Base URL for the source `tencent`; the name is known on a CVM instance only.")
    ] = "http://metadata.tencentyun.com"
    volcengine_metadata_url: Annotated[
        str, Meta(description="Base URL for the source `volcengine`; the default is link-local on an ECS instance.")
    ] = "http://100.96.0.96"
    volcengine_metadata_mode: Annotated[
        MetadataMode,
        Meta(description="For the source `volcengine`: plain, hardened (with session tokens), or auto."),
    ] = MetadataMode.AUTO
    file_path: Annotated[Path | None, Meta(description="The file that the source `file` reads.")] = None
    pods: Annotated[
        PodsMode,
        Meta(
            description="Whether to watch the node's opted-in pods for eviction through the API server. auto: if the "
            "agent runs in a pod with a service account; on: always, and do not start without one; off: never."
        ),
    ] = PodsMode.AUTO
    not_spot_labels: Annotated[
        tuple[Annotated[str, Meta(pattern="^[^=]+=")], ...],
        Meta(
            description="Node labels as NAME=VALUE, separated by commas. A node with any of them is not spot capacity, "
            "so no cloud is polled there. The agent sees labels only where it watches pods."
        ),
    ] = ("node.alibabacloud.com/spot-strategy=NoSpot",)
    account_dir: Annotated[
        Path, Meta(description="Directory of the pod's service account: token, ca.crt and namespace.")
    ] = SERVICE_ACCOUNT_DIR
    api_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=60.0,
            description="An API server that does not answer a request within this time counts as unavailable.",
        ),
    ] = 5.0
    poll_seconds: Annotated[
        float,
        Meta(
            ge=0.02, le=1.0, description="Interval between polls. The documented latencies assume at most one second."
        ),
    ] = 1.0
    max_lead_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=366 * 86400.0,
            description="Seconds. A sudden reclaim that is announced further ahead counts as unknown until it is "
            "nearer: clouds announce minutes ahead, and a job should not stop now for the year 9999.",
        ),
    ] = 3600.0
    outbox_limit: Annotated[
        int,
        Meta(ge=1, le=100_000, description="The most notices kept; a node has two, and a few hundred with its pods."),
    ] = 1024
    heartbeat_seconds: Annotated[
        float,
        Meta(
            ge=0.05,
            le=600.0,
            description="The longest pause between heartbeats on the stream that the agent asks for, in seconds; the "
            "supervisor may set a shorter one. Three of them without a message end the stream, and while a report "
            "waits, three of the supervisor's own. Pings of HTTP/2, every 60 s, detect most faults earlier.",
        ),
    ] = 300.0
    watchdog_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=600.0,
            description="The kernel kills an agent that is frozen or hangs for this many seconds, so that the "
            "supervisor sees at once that nobody watches the node; whatever runs the agent starts it again. 0 turns "
            "this off, for a debugger. It cannot work where the agent is the first process of a container.",
        ),
    ] = 10.0
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
    failpoint: Annotated[
        str,
        Meta(description="For tests: NAME[:NTH][@USR1] where this process kills itself; see docs/adr/0011."),
    ] = ""

    def __post_init__(self) -> None:
        settings.check_field("supervisor", self.supervisor, address.parse)
        if self.ca_file is None and not address.is_loopback(address.parse(self.supervisor).host):
            raise ValueError(
                "SUPERVISOR is not on loopback, so CA_FILE must be set: the token would be sent without encryption"
            )
        for field, served in (("probe_address", self.probe_address), ("metrics_address", self.metrics_address)):
            if served:
                settings.check_field(field, served, address.parse)
        if 0 < self.watchdog_seconds < _LEAST_WATCHDOG:
            why = f"must be 0 or at least {_LEAST_WATCHDOG:g}, as a busy machine is slow"
            raise settings.BadValueError("watchdog_seconds", why)
        settings.check_field("failpoint", self.failpoint, lambda text: failpoints.parse(text, AgentFailpoint))
        if len(set(self.sources)) != len(self.sources):
            raise ValueError("SOURCES names a source twice")
        if SourceKind.AUTO in self.sources and not {SourceKind.AUTO, SourceKind.FILE}.issuperset(self.sources):
            raise settings.BadValueError("sources", "auto finds the cloud by itself, so it stands alone or beside file")
        if self.azure_acknowledge and self.pods is PodsMode.OFF:
            raise ValueError("AZURE_ACKNOWLEDGE needs PODS, which tells when no opted-in pod is left")
        if SourceKind.FILE in self.sources and self.file_path is None:
            raise ValueError("FILE_PATH must be set for the source `file`")
        if set(self.sources) == {SourceKind.FILE} and not self.node_uid:
            raise ValueError("NODE_UID must be set: no source knows the machine's id")
        for field in _URLS:
            settings.check_field(field, getattr(self, field), _check_url)


def _check_url(text: str) -> None:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
        raise ValueError(f"{text!r} is not http://host or http://host/path")


def load(environ: Mapping[str, str]) -> AgentSettings:
    """Reads the settings.

    Raises:
        SettingsError: A setting is unknown, missing or invalid.
    """
    return settings.load(AgentSettings, PREFIX, environ)
