"""Where the files of one simulated world lie."""

from dataclasses import dataclass
from pathlib import Path

from simulator.cloud.trace import Node


@dataclass(frozen=True, slots=True)
class WorldPaths:
    """One directory that holds everything: logs, tokens, events, the operator's list of hosts."""

    root: Path

    @property
    def hosts(self) -> Path:
        """The operator's list: one `node:1` a line."""
        return self.root / "hosts"

    @property
    def truth(self) -> Path:
        """Events that the cloud writes: what is so, whatever anybody believes."""
        return self.root / "truth"

    @property
    def state(self) -> Path:
        """Which process runs on which node: SIM_STATE of the launcher."""
        return self.root / "state"

    @property
    def supervisor(self) -> Path:
        """The supervisor's data directory."""
        return self.root / "supervisor"

    @property
    def tls(self) -> Path:
        """The supervisor's certificate and the CA, in a world with TLS."""
        return self.root / "tls"

    def log(self, name: str) -> Path:
        """The output of one process."""
        return self.root / "logs" / f"{name}.log"

    def token(self, name: str) -> Path:
        """A token that a process reads."""
        return self.root / "tokens" / name

    def pids(self, node: Node) -> Path:
        """Files named by the pids of the worker processes that run on this node."""
        return self.state / "nodes" / node

    def job(self, name: str) -> Path:
        """What belongs to one job: its identity directory, its events, its checkpoint."""
        return self.root / "jobs" / name
