"""The file paths of pods and jobs on this machine."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from simulator.cluster.objects import RunPod


def write(path: Path, text: str) -> None:
    """Replace a file atomically, as a projected volume does."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.new")
    new.touch(mode=0o600)
    new.write_text(text, encoding="utf-8")
    new.replace(path)


@dataclass(frozen=True, slots=True)
class PodPaths:
    root: Path

    @property
    def edl(self) -> Path:
        """Its /etc/edl."""
        return self.root / "edl"

    @property
    def kubeai(self) -> Path:
        """Its /var/run/kubeai."""
        return self.root / "kubeai"

    @property
    def state(self) -> Path:
        """For a launcher: its processes by host."""
        return self.root / "state"

    def pids(self, host: str) -> list[int]:
        """For a launcher: its processes on that host."""
        return [int(entry.name) for entry in (self.state / "nodes" / host).glob("[0-9]*")]

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """All files, in one directory, which is also the mark of all processes."""

    root: Path

    def home(self, pod: RunPod) -> PodPaths:
        return PodPaths(self.root / "pods" / pod.metadata.uid)

    def host(self, pod: RunPod) -> Path:
        """The link by which a running pod is found by its name."""
        return self.hosts(pod) / pod.name

    def hosts(self, pod: RunPod) -> Path:
        """The names that the pods of its namespace can reach."""
        return self.root / "hosts" / pod.metadata.namespace

    def job(self, namespace: str, name: str) -> Path:
        """The files that survive a job's pods: its events, checkpoint, and launchers' logs."""
        return self.root / "jobs" / namespace / name
