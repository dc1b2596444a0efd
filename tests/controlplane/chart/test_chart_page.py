import asyncio
from pathlib import Path

import pytest

from tests.chart import chart_page as page
from tests.chart.chart_rendering import NAMESPACE
from tests.controlplane.chart.chart_cluster import LINUX
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.definitions import DEFINITIONS, until_gone
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.timeout(400)

_DELETE_DEFINITIONS = "kubectl delete customresourcedefinition "
_HERE = f"/apis/apps/v1/namespaces/{NAMESPACE}"

_MADE_BY_SUPERVISORS = {
    "/apis/coordination.k8s.io/v1/namespaces/arena-system/leases": "job-supervisor",
    "/api/v1/namespaces/arena-system/secrets": "elastic-job-supervisor-keys",
    "/api/v1/namespaces/arena-system/configmaps": "elastic-job-supervisor-ca",
}
"""By those that run: kwok's pods are Ready, and run nothing."""


async def test_the_commands_of_the_install_page_work_as_they_stand(
    own_controlplane: ControlPlane, tmp_path: Path
) -> None:
    """One after the other in the page's order, from a cluster that has nothing until it has nothing again.

    Those that protect a job need containers that run: the tests of a real node follow them. Those about Arena have
    tests of their own.
    """
    desk = page.desk(tmp_path)
    async with client(own_controlplane.cluster) as api:
        nodes = Namespace(own_controlplane.cluster, api)
        for name in ("a", "b"):
            await nodes.node(name, labels=LINUX)
        definitions = await _names(api, DEFINITIONS)
        sections = [section for section in page.sections() if section not in (page.ARENA, page.PROTECT)]
        followed = [line for section in sections for line in page.commands(section)]
        assert [each.split()[0] for each in followed].count("kubectl") >= 6
        for each in followed:
            following = asyncio.to_thread(page.follow, each, own_controlplane.cluster, desk)
            if each.startswith(_DELETE_DEFINITIONS):
                await asyncio.gather(following, until_gone(api, each.removeprefix(_DELETE_DEFINITIONS).split()))
            else:
                await following
            if each.startswith("helm "):
                installed = await _names(api, f"{_HERE}/deployments")
                assert bool(installed) == each.startswith(("helm upgrade", "helm rollback"))
            if each.startswith("helm upgrade --install"):
                for path, name in _MADE_BY_SUPERVISORS.items():
                    await api.create(path, {"metadata": {"name": name}})
        assert await _names(api, DEFINITIONS) == definitions
        for path, name in _MADE_BY_SUPERVISORS.items():
            assert name not in await _names(api, path)


async def _names(api: Api, path: str) -> set[str]:
    return {each["metadata"]["name"] for each in (await api.get(path))["items"]}
