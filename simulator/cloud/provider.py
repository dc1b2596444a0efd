"""The simulated cloud provider.

It records everything that happens to a node before it does it, so that all consequences come later in the event log.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from simulator.cloud.metadata import MetadataServer
from simulator.cloud.nodes import SimulatedNodes
from simulator.cloud.process import TooLate
from simulator.cloud.trace import Node
from simulator.events import EventLog, JobEventKind

# 24 agents start in 25 s one by one, 8.6 s by fours, 6.4 s by eights and 5.2 s all at once, on two busy cores. But all
# at once, each takes so long that its first poll may time out.
AT_ONCE = 8
ARRIVAL_SECONDS = 30.0
POLL_SECONDS = 0.02


class Provider:
    """The cloud: its nodes, their metadata, and the record of what was done to them."""

    def __init__(self, metadata: MetadataServer, nodes: SimulatedNodes, truth: EventLog) -> None:
        self._metadata = metadata
        self._nodes = nodes
        self._truth = truth
        self._noticed: set[Node] = set()

    async def populate(self, nodes: Sequence[Node], at_once: int = AT_ONCE) -> None:
        """Add nodes, a few at a time, and return when every agent has polled its metadata.

        Raises:
            ProcessEnded: An agent ended instead.
            TooLate: An agent has not polled 30 s after its start.
        """
        starting: deque[Node] = deque()
        for node in nodes:
            if len(starting) == at_once:
                await self.wait_for_poll(starting.popleft())
            self.add(node)
            starting.append(node)
        for node in starting:
            await self.wait_for_poll(node)

    async def wait_for_poll(self, node: Node) -> None:
        """Wait until the node's agent has polled the metadata.

        Raises:
            ProcessEnded: The agent ended instead.
            TooLate: It has not polled within 30 s.
        """
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while self._metadata.poll_count(node) == 0:
            agent = self._nodes.agent(node)
            agent.check()
            if time.monotonic() > deadline:
                raise TooLate(f"{agent.name} has not polled after {ARRIVAL_SECONDS:g} s:\n{agent.tail()}")
            await asyncio.sleep(POLL_SECONDS)

    def add(self, node: Node) -> None:
        self._truth.write(JobEventKind.NODE_ADDED, node=node)
        self._metadata.add(node)
        self._nodes.start(node)

    def notice(self, node: Node, deadline: float, group: str = "", *, synthetic: bool = False) -> None:
        """Announce in the node's metadata that it will be gone at `deadline`, in Unix seconds.

        Args:
            node: An existing node.
            deadline: When it is to be gone. Only kill() removes it.
            group: Name of the group of nodes that are reclaimed together; empty for the node alone.
            synthetic: Whether the notice is not from a trace.
        """
        lead = deadline - time.time()
        self._truth.write(
            JobEventKind.NOTICE_SHOWN, node=node, group=group or node, lead=lead, deadline=deadline, synthetic=synthetic
        )
        self._noticed.add(node)
        self._metadata.notice(node, deadline)

    def withdraw(self, node: Node) -> None:
        self._truth.write(JobEventKind.NOTICE_WITHDRAWN, node=node)
        self._noticed.discard(node)
        self._metadata.withdraw(node)

    def kill(self, node: Node) -> None:
        """Kill the node with everything on it, announced or not."""
        self._truth.write(JobEventKind.NODE_GONE, node=node, announced=node in self._noticed)
        self._noticed.discard(node)
        self._nodes.kill(node)
        self._metadata.remove(node)
