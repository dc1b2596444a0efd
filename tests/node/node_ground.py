"""Gives the tests of a real node a machine of their own: network, processes and mounts that end with them.

Run as a module, with pytest's arguments: prepares what they need, runs them there, and takes the control groups away.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.horovod.horovod_installation import HorovodNotInstallable, installed
from tests.images import images_building as images
from tests.images.images_building import BASE, Image
from tests.testkit.caches import cache
from tests.testkit.controlplane.binaries import BinaryNotBuilt, NoGo, build, build_clients, build_node
from tests.testkit.packages import PackageUnavailable, require

GROUND = "NODE_TEST_GROUND"
MISSING = "NODE_TEST_MISSING"
TRAINING, PAUSE = "localhost/training:1", "localhost/pause:1"
_SSH = "localhost/with-ssh:1"
# The stand-in for et-operator asks for this one, as the real operator does: a shell that copies two files.
FIRST = "docker.io/library/alpine:3.10"
# The install page has both images in this registry. The tutorial uses the names with which they are built.
REGISTRY = "registry.example.com/arena"
ARCHIVES = "images"
_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "mount": "mount",
    "ssh": "openssh-client",
    "unshare": "util-linux",
}
_CGROUPS = Path("/sys/fs/cgroup")
_HIERARCHIES = (
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "pids",
    "systemd",
    "unified",
)
_WAIT = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"
# All processes end with the first one in there, whatever ends that; mounts and network follow.
_OWN = ("unshare", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount", "--mount-proc", "--propagation=private")


def main(arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", "tests/node", *arguments]
    try:
        _check()
        with tempfile.TemporaryDirectory(dir=_home(), prefix="ground-", ignore_cleanup_errors=True) as directory:
            _pack(Path(directory) / ARCHIVES)
            return _run([*_OWN, *pytest], Path(directory))
    except (PackageUnavailable, NoGo) as reason:
        return subprocess.run(pytest, check=False, env={**os.environ, MISSING: str(reason)}).returncode
    except (BinaryNotBuilt, images.ImageNotBuilt) as error:
        sys.exit(f"no node: {error}")


def _check() -> None:
    require(_PACKAGES)
    refused = subprocess.run(  # Our own arguments.
        [*_OWN, "ip", "link", "add", "br0", "type", "bridge"], check=False, capture_output=True, text=True
    )
    if refused.returncode:
        raise PackageUnavailable(f"this machine gives no network of one's own: {' '.join(refused.stderr.split())}")
    if not os.access(_CGROUPS, os.W_OK) or not list(_groups("")):
        raise PackageUnavailable("this machine gives no control groups of one's own")
    build()
    build_node()
    build_clients()
    with suppress(HorovodNotInstallable):  # Its tests say so; where they run, nothing can be installed.
        installed()


def _home() -> Path:
    # Not in /tmp: containers need a file system that layers can be put upon.
    home = cache("images")
    home.mkdir(parents=True, exist_ok=True)
    return home


def _pack(archives: Path) -> None:
    storage = images.build().storage
    sdk, script = images.CHECKOUT / "sdk" / "kubeai", Path(__file__).with_name("node_training.py")
    if not images.buildah(storage, "images", "--quiet", "--filter", f"reference={_SSH}"):
        _make_with_ssh(storage)
    _make(storage, TRAINING, _SSH, (sdk, "/training/kubeai"), (script, "/training/train.py"))
    _make(storage, PAUSE, BASE)
    images.buildah(storage, "tag", PAUSE, FIRST)
    examples = [images.build_example(storage, each) for each in ("first-job", "torchrun", "huggingface", "tensorflow")]
    examples.append(images.build_example(storage, "horovod", _SSH))
    names = [(each.reference, each.reference.replace("localhost", REGISTRY)) for each in Image]
    names += [(each, each) for each in (*(one.reference for one in Image), *examples, TRAINING, PAUSE, FIRST)]
    # One layout, in which they share what they share: archives would be a gigabyte. Compressed for nobody.
    for image, name in names:
        images.buildah(storage, "push", "--quiet", "--disable-compression", image, f"oci:{archives}:{name}")
    _name(archives / "index.json")


def _name(index: Path) -> None:
    """Say it as containerd reads it: to it the other one is a tag."""
    listed = json.loads(index.read_bytes())
    for manifest in listed["manifests"]:
        said = manifest["annotations"]
        said["io.containerd.image.name"] = said["org.opencontainers.image.ref.name"]
    index.write_text(json.dumps(listed), encoding="utf-8")


def _make_with_ssh(storage: Path) -> None:
    container = images.buildah(storage, "from", "--pull-never", BASE)
    install = "apt-get update && apt-get install --yes --no-install-recommends openssh-server && mkdir -p /run/sshd"
    images.buildah(storage, "run", "--isolation", "chroot", container, "sh", "-c", install)
    images.buildah(storage, "commit", "--quiet", "--rm", container, _SSH)


def _make(storage: Path, name: str, base: str, *copies: tuple[Path, str]) -> None:
    container = images.buildah(storage, "from", "--pull-never", base)
    for source, target in copies:
        images.buildah(storage, "copy", "--quiet", container, str(source), target)
    settings = ["--entrypoint", f'["/bin/sh", "-c", "{_WAIT}"]', "--cmd", ""]
    images.buildah(storage, "config", *settings, container)
    # The same instant whenever: the same image, and no older one that is left behind.
    images.buildah(storage, "commit", "--quiet", "--rm", "--timestamp", "0", container, name)


def _run(command: list[str], directory: Path) -> int:
    groups = list(_groups(directory.name))
    try:
        for group in groups:
            _make_group(group)
        # Ctrl-C is for the tests, which end; what is to be taken away afterwards is taken away.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return subprocess.run(command, check=False, env={**os.environ, GROUND: str(directory)}).returncode
    finally:
        for group in groups:
            _remove_group(group)


def _make_group(group: Path) -> None:
    group.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):  # Where there are any, a new group has none and takes no process.
        if (group / name).exists():
            (group / name).write_text((group.parent / name).read_text(encoding="ascii"), encoding="ascii")


def _remove_group(group: Path) -> None:
    for inner in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        inner.rmdir()
    if group.exists():
        group.rmdir()


def _groups(name: str) -> Iterator[Path]:
    """One directory in each hierarchy of control groups, or in the only one."""
    if (_CGROUPS / "cgroup.controllers").exists():
        yield _CGROUPS / name
        return
    names = (
        "cpu",
        "cpuacct",
        "cpuset",
        "memory",
        "pids",
        "devices",
        "freezer",
        "blkio",
        "hugetlb",
        "systemd",
        "unified",
    )
    for hierarchy in names:
        if (_CGROUPS / hierarchy).exists():
            yield _CGROUPS / hierarchy / name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
