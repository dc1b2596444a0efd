"""The file paths of one simulated world."""

from dataclasses import dataclass
from pathlib import Path

from simulator.cloud.trace import Node


@dataclass(frozen=True, slots=True)
class CloudPaths:
    """A directory with everything: logs, tokens, events, the operator's host list."""

    root: Path

    @property
    def hosts(self) -> Path:
        """The operator's host list, one `node:1` per line."""
        return self.root / "hosts"

    @property
    def truth(self) -> Path:
        """The events that the cloud writes."""
        return self.root / "truth"

    @property
    def state(self) -> Path:
        """The processes on each node: SIM_STATE of the launcher."""
        return self.root / "state"

    @property
    def supervisor(self) -> Path:
        """The supervisor's data directory."""
        return self.root / "supervisor"

    @property
    def tls(self) -> Path:
        return self.root / "tls"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def token(self, name: str) -> Path:
        return self.root / "tokens" / name

    def pids(self, node: Node) -> Path:
        """Files named by the pids of the workers on this node."""
        return self.state / "nodes" / node

    def job(self, name: str) -> Path:
        """The identity directory, events and checkpoint of a job."""
        return self.root / "jobs" / name
