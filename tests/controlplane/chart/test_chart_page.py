import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tests.chart.chart_rendering import CHART, NAMESPACE
from tests.controlplane.chart.chart_cluster import Installation
from tests.controlplane.controlplane_binaries import helm

_CHECKOUT = CHART.parents[1]
_PAGE = (_CHECKOUT / "docs" / "install.md").read_text("utf-8")
_HERE = f"/apis/apps/v1/namespaces/{NAMESPACE}"


async def test_the_commands_of_the_install_page_work_as_they_stand(
    cluster_with_helm: Installation, tmp_path: Path
) -> None:
    """Those of helm, one after the other in the page's order; those of kubectl are left out, as there is none here."""
    (tmp_path / "charts").symlink_to(_CHECKOUT / "charts")
    commands = _commands()
    assert [" ".join(command.split()[:2]) for command in commands if command.startswith("helm")] == [
        "helm upgrade",
        "helm upgrade",
        "helm rollback",
        "helm uninstall",
    ]
    for command in commands:
        await _run(cluster_with_helm, command, tmp_path)
        installed = (await cluster_with_helm.api.get(f"{_HERE}/deployments"))["items"]
        assert bool(installed) == command.startswith(("helm upgrade", "helm rollback"))


def _commands() -> Sequence[str]:
    """Those that write values, and those of helm."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", _PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(("helm ", "echo "))]


async def _run(present: Installation, command: str, directory: Path) -> None:
    homes = {f"HELM_{kind}_HOME": str(directory / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    environment = {
        **os.environ,
        **homes,
        "KUBECONFIG": str(present.plane.cluster.kubeconfig),
        "PATH": f"{helm().parent}:{os.environ['PATH']}",
    }
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", command, cwd=directory, env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, wrong = await process.communicate()
    assert process.returncode == 0, f"{command}: {wrong.decode()}"
