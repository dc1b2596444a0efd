from pathlib import Path

import pytest

from tests.chart.chart_rendering import RELEASE, Refused
from tests.controlplane.chart.chart_cluster import Installation, previous_chart
from tests.testkit.waiting import until

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_GROUP = "job-supervisor.kube-ai.io"
_DEFINITION = f"{_DEFINITIONS}/supervisedjobs.{_GROUP}"
_RESOURCES = f"/apis/{_GROUP}/v1alpha1"
_JOBS = f"{_RESOURCES}/namespaces/default/supervisedjobs"
_JOB = {
    "apiVersion": "job-supervisor.kube-ai.io/v1alpha1",
    "kind": "SupervisedJob",
    "metadata": {"name": "standalone.kept"},
    "spec": {
        "epoch": 1,
        "name": "kept",
        "uid": "uid",
        "framework": "horovod",
        "minWorkers": 1,
        "maxWorkers": 2,
        "requestedWorkers": 2,
        "maxWaitSeconds": 0,
    },
}


async def test_upgrade_rollback_and_uninstall_keep_what_is_known(
    cluster_with_helm: Installation, tmp_path: Path
) -> None:
    """Definitions go with the release and come back with a rollback; resources stay, and nothing else does."""
    before = await cluster_with_helm.objects()
    await cluster_with_helm.install(chart=previous_chart(tmp_path))
    assert not await _knows_the_new_field(cluster_with_helm)
    uid = (await cluster_with_helm.api.create(_JOBS, _JOB))["metadata"]["uid"]

    await cluster_with_helm.install()
    await until(lambda: _knows_the_new_field(cluster_with_helm), "the definition is the new one")
    await cluster_with_helm.helm("rollback", RELEASE, "1", "--wait")
    assert not await _knows_the_new_field(cluster_with_helm)
    await cluster_with_helm.install()
    assert await _knows_the_new_field(cluster_with_helm)

    await cluster_with_helm.helm("uninstall", RELEASE, "--wait")
    kept = {
        f"{_DEFINITIONS}//reclaimnotices.{_GROUP}",
        f"{_DEFINITIONS}//supervisedjobs.{_GROUP}",
        # The API server's own of such definitions.
        f"/apis/apiregistration.k8s.io/v1/apiservices//v1alpha1.{_GROUP}",
        f"{_RESOURCES}/supervisedjobs/default/standalone.kept",
    }

    async def only_that_is_left() -> bool:
        return (await cluster_with_helm.objects()) - (before - kept) == kept

    await until(only_that_is_left, "everything else is gone")
    await cluster_with_helm.install()
    assert (await cluster_with_helm.api.get(f"{_JOBS}/standalone.kept"))["metadata"]["uid"] == uid


async def test_definitions_that_were_applied_by_hand_are_taken_over(cluster_with_helm: Installation) -> None:
    await cluster_with_helm.install()
    await cluster_with_helm.helm("uninstall", RELEASE, "--wait")
    for kind in ("reclaimnotices", "supervisedjobs"):
        stranger = {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}}
        await cluster_with_helm.api.patch(f"{_DEFINITIONS}/{kind}.job-supervisor.kube-ai.io", stranger)
    with pytest.raises(Refused, match="cannot be imported into the current release"):
        await cluster_with_helm.install()
    await cluster_with_helm.install({}, "--take-ownership")


async def _knows_the_new_field(present: Installation) -> bool:
    definition = await present.api.get(_DEFINITION)
    [version] = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    columns = {column["name"] for column in version["additionalPrinterColumns"]}
    assert ("leastToStart" in spec) == ("Reason" in columns)
    return "leastToStart" in spec
