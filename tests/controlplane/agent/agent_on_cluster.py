"""Runs a real agent process that uses a real API server with the account of its pod."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reclaim.v1 import reclaim_pb2 as wire

from tests.node_agent.agent_process import AgentProcess, agent
from tests.node_agent.fake_supervisor import FakeAgentService, fake_supervisor
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

MANAGED = "job-supervisor.kube-ai.io/managed-by-job-supervisor"
OPTED_IN = {MANAGED: "true"}

RULES: tuple[Mapping[str, Any], ...] = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
)
"""All that the agent may do, as docs/kubernetes/permissions.md has it."""


@dataclass(frozen=True, slots=True)
class Watching:
    process: AgentProcess
    supervisor: FakeAgentService

    def reports(self, pod: str) -> list[wire.NoticeReport]:
        """Its reports about a pod, by the pod's name, in order; each revision once."""
        said = [*self._hellos, *(report for stream in self.supervisor.streams for report in stream.notices)]
        about = [report for report in said if report.subject.name.endswith(f"/{pod}")]
        return list({report.revision: report for report in about}.values())

    @property
    def _hellos(self) -> list[wire.NoticeReport]:
        return [report for stream in self.supervisor.streams if stream.messages for report in stream.hello.notices]

    def states(self, source: str) -> list[wire.SourceReport]:
        said: list[wire.SourceReport] = []
        for stream in self.supervisor.streams:
            for message in stream.messages:
                kind = message.WhichOneof("message")
                said += message.hello.sources if kind == "hello" else []
                said += [message.source] if kind == "source" else []
        return [each for each in said if each.source == source]

    async def reported(self, pod: str, condition: Callable[[wire.NoticeReport], bool]) -> wire.NoticeReport:
        async def last() -> Any:
            reports = self.reports(pod)
            return reports[-1] if reports and condition(reports[-1]) else None

        report: wire.NoticeReport = await until(last, f"a report on {pod}")
        return report

    async def seeing(self, *, pods: bool = True) -> None:
        """Returns when the agent says that it sees its pods, or that it does not."""
        state = wire.SOURCE_STATE_CLEAR if pods else wire.SOURCE_STATE_UNKNOWN

        async def said() -> bool:
            states = self.states("kubernetes")
            return bool(states) and states[-1].state == state

        await until(said, f"the agent sees its pods: {pods}")


async def account(namespace: Namespace, cluster: RunningCluster, directory: Path) -> dict[str, str]:
    """The environment of a pod whose account may do just what the agent may."""
    await namespace.account("agent", cluster_rules=RULES)
    return await mounted(namespace, cluster, directory)


async def mounted(
    namespace: Namespace, cluster: RunningCluster, directory: Path, account: str = "agent"
) -> dict[str, str]:
    token = await namespace.token(account)
    return _mounted(token, namespace, cluster, directory)


def _mounted(token: str, namespace: Namespace, cluster: RunningCluster, directory: Path) -> dict[str, str]:
    directory.mkdir()
    (directory / "token").write_text(token)
    (directory / "namespace").write_text(namespace.name)
    (directory / "ca.crt").write_bytes(cluster.ca.read_bytes())
    url = urlsplit(cluster.url)
    return {
        "KUBERNETES_SERVICE_HOST": str(url.hostname),
        "KUBERNETES_SERVICE_PORT": str(url.port),
        "NODE_AGENT_ACCOUNT_DIR": str(directory),
        "NODE_AGENT_PODS": "on",
    }


@asynccontextmanager
async def watching(
    node: str, directory: Path, environ: Mapping[str, str], *, sees: bool = True
) -> AsyncIterator[Watching]:
    """Runs an agent for that node whose other source announces nothing.

    It waits until the agent's watch of pods works or has failed.
    """
    token = directory / "agent.token"
    token.write_text("secret")
    async with fake_supervisor() as supervisor:
        settings = {
            "NODE_AGENT_NODE_NAME": node,
            "NODE_AGENT_NODE_UID": "machine-1",
            "NODE_AGENT_SUPERVISOR": f"127.0.0.1:{supervisor.port}",
            "NODE_AGENT_TOKEN_FILE": str(token),
            "NODE_AGENT_SOURCES": "file",
            "NODE_AGENT_FILE_PATH": str(directory / "nothing"),
            "NODE_AGENT_PROBE_ADDRESS": "127.0.0.1:0",
            **environ,
        }
        async with agent(settings) as process:
            one = Watching(process, supervisor)
            await one.seeing(pods=sees)
            yield one
            await process.stop()
            assert process.process.returncode == 0


async def evict(api: Api, namespace: Namespace, name: str) -> None:
    await api.create(
        f"{namespace.path}/pods/{name}/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace.name}},
    )


def active(report: wire.NoticeReport) -> bool:
    return report.announcement == wire.ANNOUNCEMENT_ACTIVE


def withdrawn(report: wire.NoticeReport) -> bool:
    return report.announcement == wire.ANNOUNCEMENT_WITHDRAWN
