"""What the agent loads, and how often it wakes while nothing happens: it runs on every node."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.quiet_cluster import quiet_cluster
from tests.node_agent.agent_process import agent
from tests.node_agent.fake_metadata import metadata
from tests.node_agent.fake_supervisor import fake_supervisor
from tests.testkit.forbidden_imports import forbidding
from tests.testkit.waiting import until

# Packages of the other deployables, and parts of the agent's own that only some settings need.
FOREIGN = ("cryptography", "jinja2", "kubernetes_asyncio", "numpy", "supervisor", "uvloop", "yaml")
OPTIONAL = ("aiohttp.web", "prometheus_client", "servicekit.metrics", "servicekit.http_server")
POLLS = 4
MAX_WAKE_UPS = 20
"""Of the event loop between two polls. There are about four: for the request, its answer, and what follows the pods."""


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        pytest.param("node_agent.__main__", (*FOREIGN, *OPTIONAL, "aiohttp", "grpc", "google.protobuf"), id="usage"),
        pytest.param("node_agent.app", (*FOREIGN, *OPTIONAL), id="agent"),
    ],
)
def test_it_loads_only_what_it_needs(imported: str, absent: tuple[str, ...]) -> None:
    """A usage message needs no library of the network; an agent without probes and metrics needs no HTTP server."""
    code = f"import sys, {imported}; print(*(name for name in {absent!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("clustered", [pytest.param(False, id="alone"), pytest.param(True, id="cluster")])
async def test_an_idle_agent_rarely_wakes(tmp_path: Path, *, clustered: bool) -> None:
    """Between two polls the event loop waits for events, and does not look for them.

    It follows the cluster without kubernetes-asyncio, which alone takes 37 of the agent's 48 MiB.
    """
    (tmp_path / "token").write_text("secret")
    async with fake_supervisor() as supervisor, metadata() as cloud, quiet_cluster(tmp_path / "account", "n1") as found:
        environ = {
            "NODE_AGENT_NODE_NAME": "n1",
            "NODE_AGENT_SUPERVISOR": f"127.0.0.1:{supervisor.port}",
            "NODE_AGENT_TOKEN_FILE": str(tmp_path / "token"),
            "NODE_AGENT_SOURCES": "aliyun",
            "NODE_AGENT_METADATA_URL": cloud.url,
            **forbidding(tmp_path / "forbidden", "kubernetes_asyncio"),
            **(found if clustered else {}),
        }
        async with agent(environ) as running:
            await until(lambda: running.event("supervisor.welcomed"))
            assert len(supervisor.streams[0].hello.sources) == 1 + clustered
            polls, wake_ups = len(cloud.requests), running.wake_ups
            await until(lambda: len(cloud.requests) >= polls + POLLS)
            assert running.wake_ups - wake_ups <= POLLS * MAX_WAKE_UPS
