"""A real node beside a control plane: containerd, kubelet and kube-proxy, in the network of the tests' own."""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.node.node_ground import ARCHIVES, PAUSE
from tests.node.node_names import DOMAIN
from tests.testkit.controlplane.binaries import BinaryProgram, Tool
from tests.testkit.controlplane.credentials import Credentials, User
from tests.testkit.controlplane.running import ControlPlane, RunningCluster, running

NODE = "node"
ADDRESS, _PODS = "10.66.0.1", "10.66.0.0/24"
# Where machines of Alibaba Cloud find their metadata.
METADATA = "100.100.100.200"
# The first of the Services' addresses is the API server's.
_API_SERVER = "10.0.0.1"
_READY_SECONDS = 90.0
_POLL_SECONDS = 0.1
_REQUEST_SECONDS = 5.0
_BRIDGE = "nodebr0"
# Of its own: a bridge without one takes that of whichever pod comes, and peers lose it for seconds.
_MAC = "02:00:0a:42:00:01"
_NEVER = "0%"


class NodeNotReady(Exception):  # noqa: N818  # It names what is so.
    """The node does not come up; the message has its last words."""


@contextmanager
def node(programs: Mapping[BinaryProgram, Path], tools: Mapping[Tool, Path], ground: Path) -> Iterator[ControlPlane]:
    """A control plane with one real node, Ready, that has the images of the ground.

    Raises:
        NodeNotReady: It does not come up.
    """
    _network()
    _private_directories(ground)
    api_server = {"endpoint-reconciler-type": "lease", "kubelet-preferred-address-types": "InternalIP"}
    with (
        running(programs, ground / "plane", {BinaryProgram.API_SERVER: api_server}, (ADDRESS, _API_SERVER)) as plane,
        ExitStack() as stack,
    ):
        credentials = Credentials(plane.cluster.directory / "credentials")
        _start(stack, ground, "containerd", ["containerd", "--config", str(_containerd(ground))])
        _wait(lambda: _ctr(ground, "version"), "containerd answers", ground)
        _import(ground)
        _start(stack, ground, "kubelet", _kubelet(tools, ground, credentials))
        _start(stack, ground, "kube-proxy", _kube_proxy(tools, credentials))
        _wait(lambda: _is_ready(plane.cluster), "the node is Ready", ground)
        yield plane


def _network() -> None:
    commands = [
        "ip link set lo up",
        f"ip addr add {METADATA}/32 dev lo",
        f"ip link add {_BRIDGE} address {_MAC} type bridge",
        f"ip addr add {ADDRESS}/24 dev {_BRIDGE}",
        f"ip link set {_BRIDGE} up",
        # Services have addresses that no link has: without a route the kernel refuses them before they are rewritten.
        f"ip route add default via {ADDRESS}",
    ]
    for command in commands:
        subprocess.run(command.split(), check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")


def _private_directories(ground: Path) -> None:
    """Paths that programs and the tutorials' jobs cannot be talked out of; these mounts are nobody else's."""
    for name in ("var/lib/kubelet", "run/containerd", "var/lib/cni", "var/log/containers", "var/log/pods", "var/tmp"):
        fixed, own = Path("/") / name, ground / "fixed" / name
        own.mkdir(parents=True)
        fixed.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", own, fixed], check=True)  # noqa: S607  # The PATH's.


def _containerd(ground: Path) -> Path:
    network = {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": _BRIDGE,
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": _PODS}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": str(ground / "addresses"),
                },
            },
            # For pods with a port of the node.
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
    (ground / "cni").mkdir()
    (ground / "cni" / "10-pods.conflist").write_text(json.dumps(network), encoding="utf-8")
    path = ground / "containerd.toml"
    # restrict_oom_score_adj: where root may not lower it, no sandbox would start.
    path.write_text(
        f"""
version = 2
root = "{ground}/containerd-root"
state = "{ground}/containerd-state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{_socket(ground)}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{ground}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
""",
        encoding="utf-8",
    )
    return path


def _kubelet(tools: Mapping[Tool, Path], ground: Path, credentials: Credentials) -> list[str]:
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{ground.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{_socket(ground)}",
        "address": ADDRESS,
        # Nobody else is in this network.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "enforceNodeAllocatable": [],
        # What this machine has left is not what is tested.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": dict.fromkeys(
            ("memory.available", "nodefs.available", "imagefs.available", "nodefs.inodesFree", "imagefs.inodesFree"),
            _NEVER,
        ),
        "nodeStatusUpdateFrequency": "2s",
        "resolvConf": "",
        "clusterDNS": [ADDRESS],
        "clusterDomain": DOMAIN,
        "podLogsDir": "/var/log/pods",
        "volumePluginDir": str(ground / "volume-plugins"),
    }
    path = ground / "kubelet.json"
    path.write_text(json.dumps(configuration), encoding="utf-8")
    return [
        str(tools[Tool.KUBELET]),
        f"--config={path}",
        f"--kubeconfig={credentials.kubeconfig(User.KUBELET)}",
        f"--root-dir={ground / 'kubelet'}",
        f"--cert-dir={ground / 'kubelet-certificates'}",
        f"--hostname-override={NODE}",
        f"--node-ip={ADDRESS}",
    ]


def _kube_proxy(tools: Mapping[Tool, Path], credentials: Credentials) -> list[str]:
    return [
        str(tools[Tool.KUBE_PROXY]),
        f"--kubeconfig={credentials.kubeconfig(User.PROXY)}",
        f"--hostname-override={NODE}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={_PODS}",
        # Two pods of one bridge: an answer that does not come back through here keeps the pod's own address.
        "--masquerade-all=true",
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
        "--healthz-bind-address=127.0.0.1:10256",
    ]


def _start(stack: ExitStack, ground: Path, name: str, command: list[str]) -> None:
    with (ground / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    stack.callback(process.wait)
    stack.callback(process.kill)


def _ctr(ground: Path, *arguments: str) -> bool:
    command = ["ctr", "--address", str(_socket(ground)), "--namespace", "k8s.io", *arguments]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _import(ground: Path) -> None:
    archive = ground / "images.tar"
    subprocess.run(["tar", "--create", f"--file={archive}", f"--directory={ground / ARCHIVES}", "."], check=True)  # noqa: S607  # The PATH's.
    if not _ctr(ground, "images", "import", str(archive)):
        raise NodeNotReady(f"the images cannot be imported: {_tail(ground)}")
    archive.unlink()


def _socket(ground: Path) -> Path:
    return ground / "containerd.sock"


def _is_ready(cluster: RunningCluster) -> bool:
    headers = {"Authorization": f"Bearer {cluster.token}"}
    request = urllib.request.Request(f"{cluster.url}/api/v1/nodes/{NODE}", headers=headers)  # noqa: S310  # The scheme is ours.
    trusted = ssl.create_default_context(cafile=str(cluster.ca))
    try:
        with urllib.request.urlopen(request, context=trusted, timeout=_REQUEST_SECONDS) as answer:  # noqa: S310  # As above.
            found = json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        refused.close()
        return False
    conditions = {(each["type"], each["status"]) for each in found["status"].get("conditions", ())}
    return ("Ready", "True") in conditions and not found["spec"].get("taints")


def _wait(holds: Callable[[], bool], what: str, ground: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise NodeNotReady(f"not within {_READY_SECONDS:g} s: {what}\n{_tail(ground)}")
        time.sleep(_POLL_SECONDS)


def _tail(ground: Path) -> str:
    logs = sorted(ground.glob("*.log"))
    return "\n".join(f"== {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]) for log in logs)


@contextmanager
def cut(port: int) -> Iterator[None]:
    """Drops all packets to that port of pods, also on open connections, without an error to anybody."""
    rules = [["FORWARD", "-p", "tcp", f"--{end}", str(port), "-j", "DROP"] for end in ("dport", "sport")]
    for rule in rules:
        subprocess.run(["iptables", "--insert", *rule], check=True)  # noqa: S607  # The PATH's.
    try:
        yield
    finally:
        for rule in rules:
            subprocess.run(["iptables", "--delete", *rule], check=True)  # noqa: S607  # As above.
