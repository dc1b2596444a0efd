"""The commands that README.md gives for a cluster, as they are written."""

import asyncio
import os
import subprocess
from pathlib import Path

from tests.chart.chart_rendering import NAMESPACE, RELEASE
from tests.controlplane.chart.chart_cluster import Installation
from tests.docs.docs_first_hour import ROOT, blocks
from tests.testkit.controlplane.binaries import Tool, client_path
from tests.testkit.waiting import until


async def test_the_commands_of_the_readme_install_it(cluster_with_helm: Installation, tmp_path: Path) -> None:
    """Typed one after the other into a cluster without its namespace; then everything comes up."""
    await _without_namespace(cluster_with_helm)
    [block] = blocks((ROOT / "README.md").read_text("utf-8"), "cluster")
    said = await asyncio.to_thread(_typed, block, cluster_with_helm, tmp_path)
    assert f'Release "{RELEASE}" does not exist. Installing it now.' in said
    assert "No resources found" in said

    async def comes_up() -> bool:
        pods = (await cluster_with_helm.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods"))["items"]
        return [each["status"]["phase"] for each in pods] == ["Running"] * 4

    await until(comes_up, "two supervisors and two agents run")


async def _without_namespace(present: Installation) -> None:
    await present.api.delete(f"/api/v1/namespaces/{NAMESPACE}")

    async def gone() -> bool:
        names = {each["metadata"]["name"] for each in (await present.api.get("/api/v1/namespaces"))["items"]}
        return NAMESPACE not in names

    await until(gone, "the namespace is gone")


def _typed(block: str, present: Installation, home: Path) -> str:
    """Run the commands with an empty environment, in which kubectl and helm are found."""
    (home / "bin").mkdir()
    for tool in (Tool.HELM, Tool.KUBECTL):
        (home / "bin" / tool.value).symlink_to(client_path(tool))
    environment = {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "KUBECONFIG": str(present.plane.cluster.kubeconfig),
    }
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", block],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout + done.stderr
