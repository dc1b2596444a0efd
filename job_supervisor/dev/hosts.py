"""The simulated hosts: a name, a node agent, and the file that announces the host's reclaim."""

import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

from job_supervisor.dev.children import Child, command, start
from job_supervisor.dev.narration import say
from job_supervisor.dev.workspace import Workspace


@dataclass(slots=True)
class SimulatedHost:
    """One host; `agent` is None while the host is reclaimed."""

    name: str
    grpc: str
    workspace: Workspace
    agent: Child | None = field(default=None)
    _uid: str = field(default="")
    _gone_at: float = field(default=0.0)

    def boot(self) -> None:
        """Starts the host as a new machine of its name: what was announced about the old one does not concern it."""
        self.workspace.reclaim_file(self.name).unlink(missing_ok=True)
        self._uid = f"{self.name}-{uuid.uuid4()}"
        self._start_agent()

    def restart_killed_agent(self) -> None:
        """Starts the agent again if a signal has ended it, as the kernel does with an agent that is frozen."""
        if self.agent is not None and self.agent.is_killed:
            say(f"{self.agent.manner}. Starting it again.")
            self._start_agent()

    def _start_agent(self) -> None:
        settings = {
            "NODE_AGENT_NODE_NAME": self.name,
            "NODE_AGENT_NODE_UID": self._uid,
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
