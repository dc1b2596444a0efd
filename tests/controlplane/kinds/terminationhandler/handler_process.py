"""The real aws-node-termination-handler of a node, and an agent that asks the same simulated metadata of EC2."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from simulator.cloud.dialects import METADATA_URLS, SimulatedCloud
from simulator.cloud.metadata import MetadataServer
from simulator.cloud.trace import Node
from tests.controlplane.identity.identity_world import RunningIdentity
from tests.controlplane.kinds.operators import built, started
from tests.node_agent.agent_process import agent
from tests.testkit.controlplane.api import Manifest
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

NAME = "node-termination-handler"
_STARTED = "has started successfully"
_TAINT = re.compile(r'^\s+\w+Taint = "(aws-node-termination-handler/[^"]+)"$', re.MULTILINE)
_RULES: tuple[Manifest, ...] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch", "update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "get"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]},
)
"""What the handler's own chart lets it do."""


class TerminationHandler:
    """A handler that runs; what it does is in its log."""

    def __init__(self, log: Path) -> None:
        self._log = log

    async def says(self, text: str) -> None:
        """Returns once its log has that text."""
        await self._says(text, times=1)

    async def says_again(self, text: str) -> None:
        """Returns once its log has that text once more than now."""
        await self._says(text, times=self._log.read_text().count(text) + 1)

    async def _says(self, text: str, times: int) -> None:
        await until(lambda: self._log.read_text().count(text) >= times, lambda: f"{text!r} in {self._log.read_text()}")


class SpotNodes:
    """What runs on the nodes of one test besides pods. DaemonSets would start it, which have no kubelets here."""

    def __init__(
        self, cluster: RunningCluster, namespace: Namespace, metadata: MetadataServer, directory: Path
    ) -> None:
        self.metadata = metadata
        self._cluster = cluster
        self._namespace = namespace
        self._directory = directory

    async def open(self) -> None:
        """Makes the account of the handlers."""
        await self._namespace.account(NAME, cluster_rules=_RULES)
        await self._namespace.kubeconfig(NAME, self._kubeconfig)

    @asynccontextmanager
    async def handler(self, node: str, **options: bool) -> AsyncIterator[TerminationHandler]:
        """A handler of the node, with its defaults but for these options."""
        flags = [f"--{name.replace('_', '-')}={str(value).lower()}" for name, value in options.items()]
        command = [str(built(NAME).program), f"--node-name={node}", f"--metadata-url={self._url(node)}", *flags]
        log = f"{NAME}-{node}"
        with started(log, command, self._cluster, {**os.environ, "KUBECONFIG": str(self._kubeconfig)}):
            handler = TerminationHandler(self._cluster.directory / f"{log}.log")
            await handler.says(_STARTED)
            yield handler

    @asynccontextmanager
    async def agent(self, node: str, supervisor: RunningIdentity) -> AsyncIterator[None]:
        """An agent of the node, which reports to the supervisor."""
        token = self._directory / f"{node}.token"
        token.write_text(supervisor.peers.tokens.agent(node))
        settings = {
            "NODE_AGENT_NODE_NAME": node,
            "NODE_AGENT_SUPERVISOR": supervisor.peers.grpc,
            "NODE_AGENT_TOKEN_FILE": str(token),
            "NODE_AGENT_SOURCES": SimulatedCloud.AWS.value,
            "NODE_AGENT_POLL_SECONDS": "0.1",
            "NODE_AGENT_PROBE_ADDRESS": "127.0.0.1:0",
            METADATA_URLS[SimulatedCloud.AWS]: self._url(node),
        }
        async with agent(settings) as process:
            await until(lambda: process.event("supervisor.welcomed"), lambda: f"it is welcome: {process.raw}")
            yield

    @property
    def _kubeconfig(self) -> Path:
        return self._directory / f"{NAME}.kubeconfig"

    def _url(self, node: str) -> str:
        """The address of the node's metadata; the node is a new instance when it is asked for first."""
        if Node(node) not in self.metadata.nodes():
            self.metadata.add(Node(node))
        return self.metadata.url_of(Node(node))


def written_taints() -> set[str]:
    """The keys of the taints that a handler can write on a node that will be gone, by its source."""
    return set(_TAINT.findall((built(NAME).module / "pkg" / "node" / "node.go").read_text(encoding="utf-8")))
