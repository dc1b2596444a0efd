import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chart.chart_rendering import CHART, NAMESPACE
from tests.controlplane.chart.chart_cluster import LINUX
from tests.controlplane.controlplane_api import Api, client
from tests.controlplane.controlplane_binaries import Tool, client_path
from tests.controlplane.controlplane_namespace import Namespace
from tests.controlplane.controlplane_running import ControlPlane

pytestmark = pytest.mark.timeout(400)

_CHECKOUT = CHART.parents[1]
_PAGE = (_CHECKOUT / "docs" / "install.md").read_text("utf-8")
_HERE = f"/apis/apps/v1/namespaces/{NAMESPACE}"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_MADE_BY_SUPERVISORS = {
    "/apis/coordination.k8s.io/v1/namespaces/arena-system/leases": "job-supervisor",
    "/api/v1/namespaces/arena-system/secrets": "elastic-job-supervisor-keys",
    "/api/v1/namespaces/arena-system/configmaps": "elastic-job-supervisor-ca",
}
"""By those that run: kwok's pods are Ready, and run nothing."""


async def test_the_commands_of_the_install_page_work_as_they_stand(
    own_controlplane: ControlPlane, tmp_path: Path
) -> None:
    """From a cluster that has nothing, one after the other in the page's order, until it has nothing again."""
    (tmp_path / "charts").symlink_to(_CHECKOUT / "charts")
    async with client(own_controlplane.cluster) as api:
        nodes = Namespace(own_controlplane.cluster, api)
        for name in ("a", "b"):
            await nodes.node(name, labels=LINUX)
        definitions, commands = await _names(api, _DEFINITIONS), _commands()
        assert [each.split()[0] for each in commands].count("kubectl") >= 6
        for each in commands:
            await _run(own_controlplane, each, tmp_path)
            if each.startswith("helm "):
                installed = await _names(api, f"{_HERE}/deployments")
                assert bool(installed) == each.startswith(("helm upgrade", "helm rollback"))
            if each.startswith("helm upgrade --install"):
                for path, name in _MADE_BY_SUPERVISORS.items():
                    await api.create(path, {"metadata": {"name": name}})
        assert await _names(api, _DEFINITIONS) == definitions
        for path, name in _MADE_BY_SUPERVISORS.items():
            assert name not in await _names(api, path)


def _commands() -> Sequence[str]:
    """Every line of every block."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", _PAGE, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


async def _names(api: Api, path: str) -> set[str]:
    return {each["metadata"]["name"] for each in (await api.get(path))["items"]}


async def _run(plane: ControlPlane, line: str, directory: Path) -> None:
    homes = {f"HELM_{kind}_HOME": str(directory / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    tools = ":".join(str(client_path(tool).parent) for tool in (Tool.HELM, Tool.KUBECTL))
    environment = {
        **os.environ,
        **homes,
        "HOME": str(directory),  # kubectl keeps what it has discovered there.
        "KUBECONFIG": str(plane.cluster.kubeconfig),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", line, cwd=directory, env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, wrong = await process.communicate()
    assert process.returncode == 0, f"{line}: {wrong.decode()}"
