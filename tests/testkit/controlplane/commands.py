"""Command lines of a control plane's programs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.credentials import Credentials, User

# The same in every control plane, as each has a loopback address of its own. Below the ephemeral range, so that no
# connection of somebody else's takes the port of an API server that is being restarted.
_ETCD, _ETCD_PEERS, _API_SERVER, _CONTROLLER_MANAGER, _SCHEDULER, _KWOK = range(21441, 21447)
PORTS = (_ETCD, _ETCD_PEERS, _API_SERVER, _CONTROLLER_MANAGER, _SCHEDULER, _KWOK)
_ISSUER = "https://kubernetes.default.svc"
# kwok renews the leases of its nodes each quarter of this.
_NODE_LEASE_SECONDS = 8
# A node is lost after ten missed renewals: on two busy cores a process may well sleep through a few.
_NODE_GRACE_SECONDS = 20
KWOK_LABEL = {"type": "kwok"}


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one control plane, and its own loopback address."""

    directory: Path
    address: str

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.directory / "credentials")

    @property
    def data(self) -> Path:
        return self.directory / "etcd"

    def log(self, program: BinaryProgram) -> Path:
        return self.directory / f"{program}.log"

    @property
    def url(self) -> str:
        return f"https://{self.address}:{_API_SERVER}"

    @property
    def etcd_url(self) -> str:
        return f"http://{self.address}:{_ETCD}"

    def health(self, program: BinaryProgram) -> str:
        """The URL at which a program says whether it is ready."""
        return {
            BinaryProgram.ETCD: f"{self.etcd_url}/readyz",
            BinaryProgram.API_SERVER: f"{self.url}/readyz",
            BinaryProgram.CONTROLLER_MANAGER: f"https://{self.address}:{_CONTROLLER_MANAGER}/healthz",
            BinaryProgram.SCHEDULER: f"https://{self.address}:{_SCHEDULER}/healthz",
            BinaryProgram.KWOK: f"http://{self.address}:{_KWOK}/healthz",
        }[program]


Flags = Mapping[BinaryProgram, Mapping[str, object]]
"""More flags of some programs, or other values."""


def arguments(program: BinaryProgram, layout: Layout, more: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in {**_FLAGS[program](layout), **more}.items()]


def _etcd(layout: Layout) -> dict[str, object]:
    peers = f"http://{layout.address}:{_ETCD_PEERS}"
    return {
        "data-dir": layout.data,
        "listen-client-urls": layout.etcd_url,
        "advertise-client-urls": layout.etcd_url,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        # Outlives the death of any process, and no test takes away the machine.
        "unsafe-no-fsync": "true",
        "log-level": "warn",
    }


def _api_server(layout: Layout) -> dict[str, object]:
    credentials = layout.credentials
    return {
        "etcd-servers": layout.etcd_url,
        "bind-address": layout.address,
        "advertise-address": layout.address,
        "secure-port": _API_SERVER,
        # A loopback address is refused as an endpoint of the Service "kubernetes".
        "endpoint-reconciler-type": "none",
        "tls-cert-file": credentials.certificate,
        "tls-private-key-file": credentials.key,
        "token-auth-file": credentials.tokens,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "service-account-issuer": _ISSUER,
        "service-account-key-file": credentials.service_accounts,
        "service-account-signing-key-file": credentials.service_accounts,
        "service-cluster-ip-range": "10.0.0.0/24",
        "shutdown-delay-duration": "0s",
    }


def _controller_manager(layout: Layout) -> dict[str, object]:
    return {
        **_serving(layout, _CONTROLLER_MANAGER, User.CONTROLLER_MANAGER),
        "service-account-private-key-file": layout.credentials.service_accounts,
        "root-ca-file": layout.credentials.ca,
        "node-monitor-grace-period": f"{_NODE_GRACE_SECONDS}s",
        "node-monitor-period": "1s",
    }


def _scheduler(layout: Layout) -> dict[str, object]:
    return _serving(layout, _SCHEDULER, User.SCHEDULER)


def _serving(layout: Layout, port: int, user: User) -> dict[str, object]:
    return {
        "kubeconfig": layout.credentials.kubeconfig(user),
        "bind-address": layout.address,
        "secure-port": port,
        "tls-cert-file": layout.credentials.certificate,
        "tls-private-key-file": layout.credentials.key,
        "leader-elect": "false",
    }


def _kwok(layout: Layout) -> dict[str, object]:
    return {
        "kubeconfig": layout.credentials.kubeconfig(User.KWOK),
        "manage-all-nodes": "false",
        "manage-nodes-with-label-selector": ",".join(f"{name}={value}" for name, value in KWOK_LABEL.items()),
        "server-address": f"{layout.address}:{_KWOK}",
        "node-lease-duration-seconds": _NODE_LEASE_SECONDS,
        "cidr": "10.64.0.0/16",
        # Every node has kwok for its kubelet: there the API server asks for what runs in a container. Pods with
        # hostNetwork stay pending on a node without an address.
        "node-ip": layout.address,
        "node-port": _KWOK,
        "tls-cert-file": layout.credentials.certificate,
        "tls-private-key-file": layout.credentials.key,
        # What a command in a container is here, each pod's own object says.
        "enable-crds": "Exec",
    }


_FLAGS: Mapping[BinaryProgram, Callable[[Layout], dict[str, object]]] = {
    BinaryProgram.ETCD: _etcd,
    BinaryProgram.API_SERVER: _api_server,
    BinaryProgram.CONTROLLER_MANAGER: _controller_manager,
    BinaryProgram.SCHEDULER: _scheduler,
    BinaryProgram.KWOK: _kwok,
}
