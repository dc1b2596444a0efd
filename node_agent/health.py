"""The agent's answers to liveness and readiness probes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node_agent.identity import ThisNode
from node_agent.notices import SourceStatus
from node_agent.outbox import Outbox
from node_agent.uplink import Uplink
from node_agent.watchdog import Watchdog
from servicekit.clock import Clock
from servicekit.health import Health


@dataclass(frozen=True, slots=True)
class AgentHealth:
    """Live while all loops turn; ready while the supervisor has welcomed the agent on the present stream."""

    sources: Mapping[str, Watchdog]
    uplink: Uplink
    node: ThisNode
    outbox: Outbox
    clock: Clock

    def live(self) -> Health:
        """Depends on nothing outside this process."""
        loops = self._loops()
        return Health(all(loops.values()), {"loops": loops})

    def hanging(self) -> Sequence[str]:
        """The loops that hang."""
        return [name for name, alive in self._loops().items() if not alive]

    def _loops(self) -> Mapping[str, bool]:
        loops = {f"source {name}": watchdog.alive for name, watchdog in self.sources.items()}
        return {**loops, "uplink": self.uplink.watchdog.alive}

    def ready(self) -> Health:
        detail = {
            "supervisor": self._supervisor(),
            "unacknowledged": len(self.outbox.unacknowledged()),
            "sources": {status.source: self._source(status) for status in self.outbox.statuses()},
        }
        return Health(self.uplink.welcomed, detail)

    def _supervisor(self) -> str:
        if self.uplink.welcomed:
            return "acknowledged"
        if self.node.subject is None:
            return "waits for the node's uid"
        return self.uplink.trouble or "connecting"

    def _source(self, status: SourceStatus) -> Mapping[str, Any]:
        age = None if status.last_good is None else round(self.clock.monotonic() - status.last_good, 3)
        return {"state": status.state.name.lower(), "last_good_poll_age": age, "detail": status.detail}
