"""The simulated hosts: a name, a node agent, and the file that announces the host's reclaim."""

import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

from supervisor.dev.children import Child, command, start
from supervisor.dev.workspace import Workspace


@dataclass(slots=True)
class SimulatedHost:
    """One host; `agent` is None while the host is reclaimed."""

    name: str
    grpc: str
    workspace: Workspace
    agent: Child | None = field(default=None)
    _gone_at: float = field(default=0.0)

    def boot(self) -> None:
        """Starts the host as a new machine of its name: what was announced about the old one does not concern it."""
        self.workspace.reclaim_file(self.name).unlink(missing_ok=True)
        settings = {
            "NODE_AGENT_NODE_NAME": self.name,
            "NODE_AGENT_NODE_UID": f"{self.name}-{uuid.uuid4()}",
            "NODE_AGENT_SUPERVISOR": self.grpc,
            "NODE_AGENT_TOKEN_FILE": str(self.workspace.agent_token(self.name)),
            "NODE_AGENT_SOURCES": "file",
            "NODE_AGENT_FILE_PATH": str(self.workspace.reclaim_file(self.name)),
            "NODE_AGENT_PODS": "off",
            "NODE_AGENT_LOG_FORMAT": "console",
        }
        self.agent = start(
            f"The agent of {self.name}",
            [command("elastic-node-agent")],
            settings,
            self.workspace.log(f"agent-{self.name}"),
        )

    def announce(self, lead_seconds: float) -> None:
        """Announces that the host is reclaimed in `lead_seconds`."""
        self._gone_at = time.time() + lead_seconds
        deadline = datetime.fromtimestamp(self._gone_at, UTC)
        # Renamed into place, so that the agent never reads half of it.
        draft = self.workspace.reclaim_file(self.name).with_suffix(".draft")
        draft.write_text(f"{deadline:%Y-%m-%dT%H:%M:%SZ}\n", encoding="ascii")
        draft.replace(self.workspace.reclaim_file(self.name))

    @property
    def seconds_left(self) -> float:
        """The seconds until the announced reclaim."""
        return self._gone_at - time.time()

    async def vanish(self) -> None:
        """Takes the machine away, without a goodbye."""
        agent, self.agent = self.agent, None
        if agent is not None:
            await agent.kill()
