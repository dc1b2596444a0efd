"""Every setting of the supervisor: `JOB_SUPERVISOR_<FIELD>` in the environment, parsed once."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from servicekit import failpoints
from servicekit.address import Address, parse
from servicekit.logs import LogFormat, LogLevel
from servicekit.settings import checked
from supervisor.decide.policy import Policy
from supervisor.domain.drill import EVENT_REASON
from supervisor.failpoints import At

PREFIX = "JOB_SUPERVISOR_"

_REASON = re.compile(r"([A-Za-z][A-Za-z0-9]{0,127})(?::([0-9]{1,6}))?")
"""Of an Event, as Kubernetes wants them: one word."""


_OBJECT = r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?\Z"
"""Names an object of a cluster, or nothing."""

_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


class StoreKind(StrEnum):
    """Where facts and decisions are kept."""

    SQLITE = "sqlite"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Policy):
    """The policy of `supervisor.decide.policy`, and where and how to serve."""

    data_dir: Annotated[Path, Meta(description="Holds the SQLite store, the token secret and endpoints.json.")] = Path(
        "./job-supervisor-data"
    )
    store: Annotated[
        StoreKind,
        Meta(
            description="sqlite: a file in DATA_DIR. kubernetes: custom resources of the cluster that KUBECONFIG "
            "names, else of this pod's, else of the one that ~/.kube/config names."
        ),
    ] = StoreKind.SQLITE
    namespace: Annotated[
        str,
        Meta(
            max_length=63,
            description="With the Kubernetes store, holds the jobs that launchers register. Empty: this pod's own, or "
            "the kubeconfig's.",
        ),
    ] = ""
    leader_election: Annotated[
        bool,
        Meta(
            description="With the Kubernetes store, several supervisors may run: one leads, and the others stand by. "
            "false: this is the only one."
        ),
    ] = True
    lease_name: Annotated[
        str, Meta(min_length=1, max_length=253, description="The Lease that decides who leads, in NAMESPACE.")
    ] = "job-supervisor"
    lease_seconds: Annotated[
        int,
        Meta(ge=1, le=60, description="So long after its last sign of life a leader is given up; renewed four times."),
    ] = 3
    pod_name: Annotated[
        str, Meta(max_length=253, description="This pod's, for the label of the leader. Empty: none is set.")
    ] = ""
    store_timeout_seconds: Annotated[
        float,
        Meta(ge=0.1, le=60, description="An API server that has not answered a request by then counts as away."),
    ] = 5.0
    reclaim_events: Annotated[
        tuple[str, ...],
        Meta(
            description="With the Kubernetes store: REASON or REASON:SECONDS of Events that announce the end of their "
            "pod or node, so long after the Event; without seconds, DEFAULT_LEAD_SECONDS."
        ),
    ] = (
        "BestEffortToBeReleased:300",
        "SpotToBeReleased:180",
        "InstanceToBeTerminated",
        "ReceivedReclaimNodeNotification:300",
    )
    kubernetes_events: Annotated[
        bool,
        Meta(
            description="With the Kubernetes store: say what was noticed and decided as Events of the pods, jobs and "
            "notices that it is about."
        ),
    ] = True
    agent_account: Annotated[
        str,
        Meta(
            pattern=r"^[^/]+/[^/]+\Z",
            description="With the Kubernetes store: namespace/name of the service account of node agents. The token of "
            "a pod of any other speaks for the job that the pod belongs to.",
        ),
    ] = "arena-system/elastic-job-supervisor-agent"
    token_audience: Annotated[
        str, Meta(min_length=1, description="With the Kubernetes store: what tokens of pods must be made for.")
    ] = "job-supervisor.kube-ai.io"  # noqa: S105 - a name, not a password
    token_issuer: Annotated[
        str,
        Meta(
            description="With the Kubernetes store: who must have made tokens of pods. Empty: whoever the API server "
            "says at /.well-known/openid-configuration."
        ),
    ] = ""
    grpc_address: Annotated[str, Meta(description="host:port for agents; port 0 takes a free one.")] = "127.0.0.1:8470"
    http_address: Annotated[str, Meta(description="host:port for launchers and training processes.")] = "127.0.0.1:8471"
    status_page: Annotated[
        bool, Meta(description="Serve the status page at HTTP_ADDRESS, to browsers with a viewer token.")
    ] = True
    webhook_address: Annotated[
        str,
        Meta(
            description="With the Kubernetes store: host:port where API servers ask about new pods, whether this "
            "supervisor leads or not. Empty: nowhere."
        ),
    ] = ""
    public_address: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/\s]+)?\Z",
            description="With WEBHOOK_ADDRESS: what pods are told, the URL of HTTP_ADDRESS by the name that its "
            "certificate has.",
        ),
    ] = ""
    public_ca_file: Annotated[
        Path | None,
        Meta(
            description="PEM: what pods are given to trust. Empty: the CA of KEYS_SECRET where there are TLS_NAMES, "
            "else those of their own systems."
        ),
    ] = None
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
    tls_cert_file: Annotated[
        Path | None,
        Meta(description="PEM: the certificate that both ports serve, its chain after it. Needed beyond loopback."),
    ] = None
    tls_key_file: Annotated[Path | None, Meta(description="PEM: the certificate's key, not encrypted.")] = None
    keys_secret: Annotated[
        str,
        Meta(
            pattern=_OBJECT,
            description="With the Kubernetes store: the Secret in NAMESPACE that holds the CA and what tokens are "
            "signed with, the same for all supervisors. Whoever comes first makes it. Empty: tokens are signed with "
            "the secret in DATA_DIR.",
        ),
    ] = ""
    tls_names: Annotated[
        tuple[str, ...],
        Meta(
            description="With KEYS_SECRET and without TLS_CERT_FILE: the names and addresses by which others reach "
            "this supervisor. It issues its own certificate for them, and renews it."
        ),
    ] = ()
    tls_leaf_hours: Annotated[
        float,
        Meta(ge=0.001, le=8760, description="The life of such a certificate; renewed when a third of it is left."),
    ] = 720.0
    ca_config_map: Annotated[
        str,
        Meta(
            pattern=_OBJECT,
            description="With TLS_NAMES: the ConfigMap in NAMESPACE where the leader says whom to trust, as ca.crt. "
            "Empty: nowhere.",
        ),
    ] = "elastic-job-supervisor-ca"
    webhook_name: Annotated[
        str,
        Meta(
            pattern=_OBJECT,
            description="With TLS_NAMES: the MutatingWebhookConfiguration in which the leader says so too. Empty: "
            "none.",
        ),
    ] = ""
    tls_reload_seconds: Annotated[
        float, Meta(ge=0.05, le=3600, description="Between two looks at the certificate, which may be exchanged.")
    ] = 5.0
    heartbeat_seconds: Annotated[
        float, Meta(ge=0.05, le=60, description="On every stream; three missed ones mean that the peer is gone.")
    ] = 5.0
    connection_seconds: Annotated[
        float,
        Meta(
            ge=0.1,
            le=600,
            description="A connection must bring its TLS handshake to an end, then a request's head, then its body and "
            "take the answer, each within this long. Peers give up after five.",
        ),
    ] = 10.0
    launcher_live_seconds: Annotated[
        float, Meta(ge=0, description="A launcher owns its job's name for this long after its stream ended.")
    ] = 15.0
    launcher_hosts: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="A launcher token's jobs may list this many hosts together; a host that two jobs list counts "
            "twice. Another job is refused, and a longer list of a job that is there is cut off.",
        ),
    ] = 20_000
    retention_hours: Annotated[
        float,
        Meta(gt=0, description="Ended notices and jobs, and nodes that are silent, are forgotten after this long."),
    ] = 24.0
    log_format: Annotated[LogFormat, Meta(description="console or json.")] = LogFormat.CONSOLE
    log_level: Annotated[LogLevel, Meta(description="debug, info, warning or error.")] = LogLevel.INFO
    failpoint: Annotated[
        str, Meta(description="For tests: NAME[:NTH][@USR1], where this process kills itself; see docs/adr/0011.")
    ] = ""

    def __post_init__(self) -> None:
        self._check_fields()
        self._check_events()
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("TLS_CERT_FILE and TLS_KEY_FILE belong together: set both or neither")
        self._check_keys()
        self._check_webhook()
        for served in (self.grpc, self.http, *([self.webhook] if self.webhook else [])):
            if self.tls_cert_file is None and not self.tls_names and not served.is_loopback:
                raise ValueError(
                    f"{served} is not loopback, and there is no certificate to serve it with: tokens would cross the "
                    "network in the clear. Set TLS_CERT_FILE and TLS_KEY_FILE, or on a cluster KEYS_SECRET and "
                    "TLS_NAMES"
                )

    def _check_fields(self) -> None:
        checked("failpoint", self.failpoint, lambda text: failpoints.parse(text, At))
        addresses = {"grpc_address": self.grpc_address, "http_address": self.http_address}
        optional = {
            "webhook_address": self.webhook_address,
            "probe_address": self.probe_address,
            "metrics_address": self.metrics_address,
        }
        for field, text in {**addresses, **{field: text for field, text in optional.items() if text}}.items():
            checked(field, text, parse)

    def _check_events(self) -> None:
        if len(self.event_leads) < len(self.reclaim_events):
            raise ValueError("RECLAIM_EVENTS names a reason twice")
        if EVENT_REASON in self.event_leads:
            raise ValueError(f"RECLAIM_EVENTS: {EVENT_REASON} asks for drills, which announce no reclaim")

    def _check_keys(self) -> None:
        if self.keys_secret and self.store is not StoreKind.KUBERNETES:
            raise ValueError("KEYS_SECRET is for STORE=kubernetes")
        if self.tls_names and not self.keys_secret:
            raise ValueError("TLS_NAMES needs KEYS_SECRET, which holds the CA that issues the certificate")
        if self.tls_names and self.tls_cert_file is not None:
            raise ValueError("TLS_NAMES and TLS_CERT_FILE contradict each other: set one of them")
        if self.webhook_name and not self.tls_names:
            raise ValueError("WEBHOOK_NAME needs TLS_NAMES: whom to trust is said only where the CA is our own")
        for name in self.tls_names:
            if not _is_name(name):
                raise ValueError(f"TLS_NAMES: {name!r} is neither a DNS name in lower case nor an IP address")

    def _check_webhook(self) -> None:
        if self.webhook is not None and self.store is not StoreKind.KUBERNETES:
            raise ValueError("WEBHOOK_ADDRESS is for STORE=kubernetes")
        if self.webhook is not None and not self.public_address:
            raise ValueError("WEBHOOK_ADDRESS needs PUBLIC_ADDRESS, which pods are told")

    @property
    def event_leads(self) -> Mapping[str, float]:
        """Seconds between an Event that announces a reclaim and the end, by its reason.

        Raises:
            ValueError: One is not written like that.
        """
        return dict(_event_lead(text, self.default_lead_seconds) for text in self.reclaim_events)

    @property
    def grpc(self) -> Address:
        """Where agents connect."""
        return parse(self.grpc_address)

    @property
    def http(self) -> Address:
        """Where launchers and training processes connect."""
        return parse(self.http_address)

    @property
    def metrics(self) -> Address | None:
        """Where Prometheus connects; None where nothing is measured."""
        return parse(self.metrics_address) if self.metrics_address else None

    @property
    def webhook(self) -> Address | None:
        """Where API servers connect; None where they are not asked to."""
        return parse(self.webhook_address) if self.webhook_address else None


def _is_name(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return _DNS_NAME.fullmatch(text) is not None


def _event_lead(text: str, usual: float) -> tuple[str, float]:
    written = _REASON.fullmatch(text)
    if written is None:
        raise ValueError(f"RECLAIM_EVENTS: {text!r} is not REASON or REASON:SECONDS")
    reason, seconds = written.groups()
    return reason, usual if seconds is None else float(seconds)
