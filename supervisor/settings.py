"""Every setting of the supervisor: `JOB_SUPERVISOR_<FIELD>` in the environment, parsed once."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from servicekit.address import Address, is_loopback, parse
from servicekit.logs import LogFormat, LogLevel
from servicekit.settings import SettingsError, check_field
from supervisor.decide.policy import Policy
from supervisor.domain.notice import EVENT_REASON

PREFIX = "JOB_SUPERVISOR_"

_REASON = re.compile(r"([A-Za-z][A-Za-z0-9]{0,127})(?::([0-9]{1,6}))?")
"""REASON or REASON:SECONDS; Kubernetes wants the reason of an Event in one word."""
_TAINT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/-]{0,316})(?::([0-9]{1,6}))?")
"""KEY or KEY:SECONDS; a key may have a DNS name of 253 characters before 63 of its own."""

_LONGEST_LEAD = 3600.0
"""The same limit as that of DEFAULT_LEAD_SECONDS."""

_OBJECT = r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?\Z"
"""The name of a Kubernetes object, or empty."""

NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""The names that a namespace can have."""

_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


class StoreKind(StrEnum):
    """The store of notices and jobs."""

    SQLITE = "sqlite"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Policy):
    """The decision policy, and everything else that can be configured."""

    data_dir: Annotated[
        Path, Meta(description="Directory of the SQLite store, the token secret and endpoints.json.")
    ] = Path("./job-supervisor-data")
    store: Annotated[
        StoreKind,
        Meta(
            description="sqlite: a file in DATA_DIR. kubernetes: custom resources in the cluster of KUBECONFIG, or "
            "else of this pod, or else of ~/.kube/config."
        ),
    ] = StoreKind.SQLITE
    namespace: Annotated[
        str,
        Meta(
            max_length=63,
            description="With the Kubernetes store: the namespace of the jobs that launchers register. Empty: the "
            "namespace of this pod or of the kubeconfig.",
        ),
    ] = ""
    leader_election: Annotated[
        bool,
        Meta(
            description="With the Kubernetes store: several supervisors may run; one leads and the others stand by. "
            "false: this is the only supervisor."
        ),
    ] = True
    lease_name: Annotated[
        str, Meta(min_length=1, max_length=253, description="Name of the Lease in NAMESPACE that elects the leader.")
    ] = "job-supervisor"
    lease_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=60,
            description="A leader that has not renewed its lease for this long is considered dead. It renews the "
            "lease four times in this time.",
        ),
    ] = 3
    pod_name: Annotated[
        str, Meta(max_length=253, description="Name of this pod, which gets the leader label. Empty: no label is set.")
    ] = ""
    store_timeout_seconds: Annotated[
        float,
        Meta(
            ge=0.1,
            le=60,
            description="An API server that does not answer a request within this time counts as unavailable.",
        ),
    ] = 5.0
    kinds: Annotated[
        tuple[str, ...],
        Meta(
            description="With the Kubernetes store: the kinds of jobs that are supervised, by the names of their pages "
            "in docs/kinds/. Other jobs are left alone, and no right on them is needed. Empty: all kinds."
        ),
    ] = ()
    namespaces: Annotated[
        tuple[str, ...],
        Meta(
            description="With the Kubernetes store: the namespaces whose jobs are supervised. Jobs of others are left "
            "alone, and no right to change anything there is needed. Empty: all namespaces."
        ),
    ] = ()
    reclaim_events: Annotated[
        tuple[str, ...],
        Meta(
            description="With the Kubernetes store: the Events that announce a reclaim of their pod or node, as "
            "REASON or REASON:SECONDS, the seconds from the Event to the deadline. Without seconds: "
            "DEFAULT_LEAD_SECONDS."
        ),
    ] = (
        "BestEffortToBeReleased:300",
        "SpotToBeReleased:180",
        "InstanceToBeTerminated",
        "ReceivedReclaimNodeNotification:300",
    )
    reclaim_taints: Annotated[
        tuple[str, ...],
        Meta(
            description="With the Kubernetes store: the taints that announce a reclaim of their node, as KEY or "
            "KEY:SECONDS, the seconds from the first sight of the taint to the deadline. Without seconds the taint is "
            "a hint: jobs save a checkpoint and go on."
        ),
    ] = (
        "aws-node-termination-handler/spot-itn:120",
        "aws-node-termination-handler/rebalance-recommendation",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "cloud.google.com/impending-node-termination:30",
        "node-problem-controller.cce.io/SpotPriceNodeReclaimNotification:300",
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
    )
    kubernetes_events: Annotated[
        bool,
        Meta(
            description="With the Kubernetes store: report notices and decisions as Kubernetes Events of the pods, "
            "jobs and notices concerned."
        ),
    ] = True
    agent_account: Annotated[
        str,
        Meta(
            pattern=r"^[^/]+/[^/]+\Z",
            description="With the Kubernetes store: namespace/name of the service account of the node agents. A token"
            " of a pod of any other account speaks for the job of that pod.",
        ),
    ] = "arena-system/elastic-job-supervisor-agent"
    kueue_priority_boost_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="With the Kubernetes store: the largest priority boost that a job gets in its queue of Kueue "
            "for the work that a preemption would cost it. Keep it below the distance of your priority classes. 0: the "
            "supervisor writes no boosts. See docs/kubernetes/kueue.md.",
        ),
    ] = 0
    kueue_priority_boost_step_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=86400,
            description="With KUEUE_PRIORITY_BOOST_MAX: so much work that a preemption would cost is one point of "
            "boost. Ten minutes of work are worth a change of Kueue's order.",
        ),
    ] = 600.0
    kueue_priority_boost_hold_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="With KUEUE_PRIORITY_BOOST_MAX: the boost of a job that runs changes at most once in this "
            "time, so that jobs that save often do not change Kueue's order all the time.",
        ),
    ] = 300.0
    token_audience: Annotated[
        str, Meta(min_length=1, description="With the Kubernetes store: the audience that tokens of pods must have.")
    ] = "job-supervisor.kube-ai.io"  # noqa: S105 - a name, not a password
    token_issuer: Annotated[
        str,
        Meta(
            description="With the Kubernetes store: the issuer that tokens of pods must have. Empty: the issuer that "
            "the API server publishes at /.well-known/openid-configuration."
        ),
    ] = ""
    keeper_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="The port of the state keeper on each node: the webhook sets KUBEAI_KEEPER in new pods to it, "
            "with their node's address. 0: there is none.",
        ),
    ] = 0
    grpc_address: Annotated[str, Meta(description="host:port for agents; port 0 picks a free port.")] = "127.0.0.1:8470"
    http_address: Annotated[str, Meta(description="host:port for launchers and training processes.")] = "127.0.0.1:8471"
    status_page: Annotated[
        bool, Meta(description="Serve the status page at HTTP_ADDRESS to browsers that are signed in.")
    ] = True
    cluster_sign_in: Annotated[
        bool,
        Meta(
            description="With the Kubernetes store: let users of the cluster sign in to the status page with their"
            " tokens, and do on it what they may do with kubectl. The supervisor then needs the right to ask for"
            " theirs, and to change nodes."
        ),
    ] = False
    docs_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://\S+/)?\Z",
            description="URL of this repository's files, ending in a slash, such as https://git.example.com/x/blob/main/:"
            " the status page links to its pages and runbooks. Empty: no links.",
        ),
    ] = ""
    grafana_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://\S+/)?\Z",
            description="URL of the Grafana that has the dashboards of this chart, ending in a slash, such as "
            "https://grafana.example.com/: the status page links to them, with the job. Empty: no links.",
        ),
    ] = ""
    prices_file: Annotated[
        Path | None,
        Meta(
            description="YAML or JSON file with prices of machines, see docs/guide/report.md. With METRICS_ADDRESS:"
            " metrics say what jobs' machines cost, and would have cost on demand. Empty: no costs."
        ),
    ] = None
    notifications_file: Annotated[
        Path | None,
        Meta(
            description="JSON file with the targets of notifications, see docs/guide/notifications.md. Empty: no"
            " notifications."
        ),
    ] = None
    notifications_group_seconds: Annotated[
        float,
        Meta(
            ge=0, le=300, description="What happens within this time is one message for each job, and one for notices."
        ),
    ] = 10.0
    notifications_uncovered_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="A worker that is not covered for this long is worth a notification."),
    ] = 60.0
    notifications_timeout_seconds: Annotated[
        float, Meta(ge=0.1, le=60, description="Time limit for one attempt to send a notification.")
    ] = 10.0
    notifications_proxy: Annotated[
        str,
        Meta(
            pattern=r"^(http://\S+)?\Z",
            description="URL of the HTTP proxy for notifications. Proxy variables of the environment are not used."
            " Empty: no proxy.",
        ),
    ] = ""
    webhook_address: Annotated[
        str,
        Meta(
            description="With the Kubernetes store: host:port of the webhook that API servers call for new pods. "
            "Leader and standbys serve it. Empty: no webhook."
        ),
    ] = ""
    public_address: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/\s]+)?\Z",
            description="With WEBHOOK_ADDRESS: the URL of HTTP_ADDRESS that pods are given. Its host must be a name "
            "in the certificate.",
        ),
    ] = ""
    public_ca_file: Annotated[
        Path | None,
        Meta(
            description="PEM: the CAs that pods are given to trust. Empty: the CA of KEYS_SECRET if TLS_NAMES is set,"
            " or else the CAs of their own systems."
        ),
    ] = None
    probe_address: Annotated[
        str, Meta(description="host:port of /livez and /readyz; port 0 picks a free port, empty turns them off.")
    ] = ""
    metrics_address: Annotated[
        str,
        Meta(
            description="host:port of /metrics for Prometheus, without TLS and without a token; port 0 picks a free "
            "port, empty turns it off."
        ),
    ] = ""
    metrics_jobs: Annotated[
        int,
        Meta(
            ge=0,
            le=5000,
            description="With METRICS_ADDRESS: the most jobs that have metrics of their own, with their names in "
            "labels. 0: no label names a job.",
        ),
    ] = 200
    traces: Annotated[
        bool,
        Meta(
            description="Send traces of reclaims by OTLP over gRPC, see docs/guide/tracing.md. The address"
            " of the collector is in OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT."
        ),
    ] = False
    tls_cert_file: Annotated[
        Path | None,
        Meta(description="PEM: the certificate of both ports, followed by its chain. Required beyond loopback."),
    ] = None
    tls_key_file: Annotated[Path | None, Meta(description="PEM: the certificate's private key, not encrypted.")] = None
    keys_secret: Annotated[
        str,
        Meta(
            pattern=_OBJECT,
            description="With the Kubernetes store: the Secret in NAMESPACE with the CA and the token key that all "
            "supervisors share. The first supervisor creates it. Empty: tokens are signed with the secret in "
            "DATA_DIR.",
        ),
    ] = ""
    tls_names: Annotated[
        tuple[str, ...],
        Meta(
            description="With KEYS_SECRET and without TLS_CERT_FILE: the DNS names and addresses of this supervisor's"
            " certificate, which it issues and renews itself."
        ),
    ] = ()
    tls_leaf_hours: Annotated[
        float,
        Meta(
            ge=0.001,
            le=8760,
            description="Lifetime of a certificate that this supervisor issues; it is renewed when a third of the "
            "lifetime is left.",
        ),
    ] = 720.0
    ca_config_map: Annotated[
        str,
        Meta(
            pattern=_OBJECT,
            description="With TLS_NAMES: the ConfigMap in NAMESPACE where the leader publishes the CAs to trust, as "
            "ca.crt. Empty: none.",
        ),
    ] = "elastic-job-supervisor-ca"
    webhook_name: Annotated[
        str,
        Meta(
            pattern=_OBJECT,
            description="With TLS_NAMES: the MutatingWebhookConfiguration where the leader sets caBundle. Empty: none.",
        ),
    ] = ""
    tls_reload_seconds: Annotated[
        float, Meta(ge=0.05, le=3600, description="Interval at which the certificate files are checked for a rotation.")
    ] = 5.0
    heartbeat_seconds: Annotated[
        float,
        Meta(
            ge=0.05,
            le=60,
            description="Interval of heartbeats on every stream whose peer does not ask for a longer one; a peer that "
            "misses three is considered gone. An agent of which a report waits to be stored has one every time.",
        ),
    ] = 5.0
    connection_seconds: Annotated[
        float,
        Meta(
            ge=0.1,
            le=600,
            description="Time limit for each step of a connection: the TLS handshake, the head of a request, and its "
            "body with the answer. Peers give up after five seconds.",
        ),
    ] = 10.0
    launcher_live_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="A launcher keeps its job's name for this long after its stream ended.")
    ] = 15.0
    launcher_hosts: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="The most hosts that the jobs of one launcher token may list together; a host that two jobs "
            "list counts twice. Beyond it a new job is refused, and the list of an existing job is cut.",
        ),
    ] = 20_000
    retention_hours: Annotated[
        float,
        Meta(gt=0, le=8760, description="Ended notices, ended jobs and silent nodes are forgotten after this long."),
    ] = 24.0
    record_url_file: Annotated[
        Path | None,
        Meta(
            description="File with the URL of the database that keeps what has happened, such as "
            "postgresql://USER:PASSWORD@HOST/NAME. Empty: record.sqlite in DATA_DIR."
        ),
    ] = None
    record_days: Annotated[float, Meta(gt=0, le=3660, description="How many days of what has happened are kept.")] = (
        30.0
    )
    record_entries: Annotated[
        int, Meta(ge=1000, le=100_000_000, description="And how many entries at most, about 320 bytes each in SQLite.")
    ] = 500_000
    log_format: Annotated[LogFormat, Meta(description="console, json, or auto: console on a terminal, else json.")] = (
        LogFormat.AUTO
    )
    log_level: Annotated[LogLevel, Meta(description="debug, info, warning or error.")] = LogLevel.INFO
    failpoint: Annotated[
        str, Meta(description="For tests: NAME[:NTH][@USR1], where this process kills itself; see docs/adr/0011.")
    ] = ""

    def __post_init__(self) -> None:
        self._check_fields()
        if len(self.event_leads) < len(self.reclaim_events):
            raise ValueError("RECLAIM_EVENTS lists a reason twice")
        if EVENT_REASON in self.event_leads:
            raise ValueError(f"RECLAIM_EVENTS: {EVENT_REASON} asks for a drill and announces no reclaim")
        if len(self.taint_leads) < len(self.reclaim_taints):
            raise ValueError("RECLAIM_TAINTS lists a taint twice")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("TLS_CERT_FILE and TLS_KEY_FILE belong together: set both or neither")
        self._check_keys()
        if self.webhook is not None and self.store is not StoreKind.KUBERNETES:
            raise ValueError("WEBHOOK_ADDRESS needs STORE=kubernetes")
        if self.webhook is not None and not self.public_address:
            raise ValueError("WEBHOOK_ADDRESS needs PUBLIC_ADDRESS, the address that pods are given")
        for served in (self.grpc, self.http, *([self.webhook] if self.webhook else [])):
            if self.tls_cert_file is None and not self.tls_names and not is_loopback(served.host):
                raise ValueError(
                    f"{served} is not loopback and has no certificate: tokens would cross the network in the clear. "
                    "Set TLS_CERT_FILE and TLS_KEY_FILE, or on a cluster KEYS_SECRET and TLS_NAMES"
                )

    def _check_fields(self) -> None:
        addresses = {"grpc_address": self.grpc_address, "http_address": self.http_address}
        optional = {
            "webhook_address": self.webhook_address,
            "probe_address": self.probe_address,
            "metrics_address": self.metrics_address,
        }
        for field, text in {**addresses, **{field: text for field, text in optional.items() if text}}.items():
            check_field(field, text, parse)

    def _check_keys(self) -> None:
        if self.keys_secret and self.store is not StoreKind.KUBERNETES:
            raise ValueError("KEYS_SECRET needs STORE=kubernetes")
        if self.tls_names and not self.keys_secret:
            raise ValueError("TLS_NAMES needs KEYS_SECRET, whose CA issues the certificate")
        if self.tls_names and self.tls_cert_file is not None:
            raise ValueError("TLS_NAMES and TLS_CERT_FILE exclude each other: set one of them")
        if self.webhook_name and not self.tls_names:
            raise ValueError("WEBHOOK_NAME needs TLS_NAMES: the supervisor publishes only its own CA")
        for name in self.namespaces:
            if NAMESPACE.fullmatch(name) is None:
                raise ValueError(f"NAMESPACES: {name!r} cannot be the name of a namespace")
        for name in self.tls_names:
            if not _is_name(name):
                raise ValueError(f"TLS_NAMES: {name!r} is neither a DNS name in lower case nor an IP address")

    @property
    def event_leads(self) -> Mapping[str, float]:
        """The lead time in seconds of each Event reason that announces a reclaim.

        Raises:
            ValueError: An entry of RECLAIM_EVENTS has the wrong form.
        """
        leads = {}
        for text in self.reclaim_events:
            written = _REASON.fullmatch(text)
            if written is None:
                raise ValueError(f"RECLAIM_EVENTS: {text!r} is not REASON or REASON:SECONDS")
            reason, seconds = written.groups()
            leads[reason] = self.default_lead_seconds if seconds is None else _lead("RECLAIM_EVENTS", text, seconds)
        return leads

    @property
    def taint_leads(self) -> Mapping[str, float | None]:
        """The lead time in seconds of each taint that announces a reclaim; None for a hint.

        Raises:
            ValueError: An entry of RECLAIM_TAINTS has the wrong form.
        """
        leads: dict[str, float | None] = {}
        for text in self.reclaim_taints:
            written = _TAINT.fullmatch(text)
            if written is None:
                raise ValueError(f"RECLAIM_TAINTS: {text!r} is not KEY or KEY:SECONDS")
            key, seconds = written.groups()
            leads[key] = None if seconds is None else _lead("RECLAIM_TAINTS", text, seconds)
        return leads

    @property
    def grpc(self) -> Address:
        """The address of the gRPC server."""
        return parse(self.grpc_address)

    @property
    def page_url(self) -> str:
        """The URL of the page as a browser on this machine sees it."""
        scheme = "http" if self.tls_cert_file is None and not self.tls_names else "https"
        return f"{scheme}://{self.http}"

    @property
    def http(self) -> Address:
        """The address of the HTTP server."""
        return parse(self.http_address)

    @property
    def metrics(self) -> Address | None:
        """The address of /metrics; None if metrics are off."""
        return parse(self.metrics_address) if self.metrics_address else None

    @property
    def webhook(self) -> Address | None:
        """The address of the webhook; None if there is none."""
        return parse(self.webhook_address) if self.webhook_address else None


def _is_name(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return _DNS_NAME.fullmatch(text) is not None


def _lead(setting: str, text: str, seconds: str) -> float:
    if float(seconds) > _LONGEST_LEAD:
        raise ValueError(f"{setting}: {text!r} has more than {_LONGEST_LEAD:g} seconds")
    return float(seconds)


def create_data_dir(directory: Path) -> None:
    """Creates the data directory if it does not exist; only its owner can read it.

    Raises:
        SettingsError: The path is not a directory.
        OSError: The directory cannot be created.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError) as error:
        raise SettingsError(f"{PREFIX}DATA_DIR", f"{directory} is not a directory") from error
