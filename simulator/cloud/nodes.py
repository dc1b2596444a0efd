"""Nodes as real processes: a node agent, the job's workers on the node, and a line in the operator's list."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from simulator.cloud.paths import CloudPaths
from simulator.cloud.process import CloudChild, end, environment, spawn, stop_all
from simulator.cloud.trace import Node

# An operator takes about half a second to notice that a node is gone and to rewrite its list.
OPERATOR_SECONDS = 0.5
# A launcher that polls its list every second may start a worker on a node that is just gone. That one is ended too.
SWEEP_SECONDS = 3.0
SWEEP_EVERY_SECONDS = 0.05
STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """The command of a node's agent and its extra environment variables."""

    command: Sequence[str]
    env: Mapping[str, str]


class HostsFile:
    """The operator's list, always replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._nodes: dict[Node, None] = {}
        self._write()

    def put(self, node: Node) -> None:
        self._nodes[node] = None
        self._write()

    def drop(self, node: Node) -> None:
        self._nodes.pop(node, None)
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=".hosts-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{node}:1\n" for node in self._nodes)
        Path(name).replace(self._path)


class SimulatedNodes:
    """All running nodes. Close it when done.

    Args:
        paths: The world's paths.
        agent: Returns the command of a node's agent.
        settings: Extra variables for each start of each agent.
    """

    def __init__(
        self, paths: CloudPaths, agent: Callable[[Node], AgentCommand], settings: Mapping[str, str] | None = None
    ) -> None:
        self._places = paths
        self._agent = agent
        self._settings = settings or {}
        self._agents: dict[Node, CloudChild] = {}
        self._killed: list[CloudChild] = []
        self._vanishing: dict[Node, asyncio.Task[None]] = {}
        self.hosts = HostsFile(paths.hosts)

    def start(self, node: Node) -> None:
        """Add a node: start its agent and list it."""
        if (vanishing := self._vanishing.pop(node, None)) is not None:
            vanishing.cancel()
        self.start_agent(node)
        self.hosts.put(node)

    def start_agent(self, node: Node, settings: Mapping[str, str] | None = None) -> CloudChild:
        """Start or restart the agent of a node. `settings` are variables for this start only."""
        how = self._agent(node)
        env = environment(self._places.root, {**self._settings, **how.env, **(settings or {})})
        child = spawn(f"agent of {node}", how.command, env, self._places.log(f"agent-{node}"))
        self._agents[node] = child
        return child

    def agent(self, node: Node) -> CloudChild:
        return self._agents[node]

    def kill(self, node: Node) -> None:
        """Kill the node with everything on it. The operator notices a moment later."""
        self._agents[node].send(signal.SIGKILL)
        # A node may return under the same name, with another agent, before this one has been reaped.
        self._killed.append(self._agents[node])
        self._vanishing[node] = asyncio.create_task(self._vanish(node), name=f"vanish {node}")

    async def close(self) -> None:
        """Stop all agents.

        Workers must be ended by their launcher. What it leaves behind is a finding that we must not hide.
        """
        vanishing, self._vanishing = list(self._vanishing.values()), {}
        for task in vanishing:
            task.cancel()
        agents, self._agents = [*self._killed, *self._agents.values()], {}
        await stop_all(agents, STOP_SECONDS)
        for task in vanishing:
            with suppress(asyncio.CancelledError):
                await task

    async def _vanish(self, node: Node) -> None:
        gone = time.monotonic()
        listed = True
        while (age := time.monotonic() - gone) < SWEEP_SECONDS:
            if listed and age >= OPERATOR_SECONDS:
                self.hosts.drop(node)
                listed = False
            self._end_workers(node)
            await asyncio.sleep(SWEEP_EVERY_SECONDS)

    def _end_workers(self, node: Node) -> None:
        for pid in worker_pids(self._places, node):
            end(pid, self._places.root)


def worker_pids(paths: CloudPaths, node: Node) -> list[int]:
    """Return the worker processes that the launcher has started on this node."""
    with suppress(FileNotFoundError):
        return [int(entry.name) for entry in paths.pids(node).iterdir() if entry.name.isdecimal()]
    return []
