"""The PodGroup of an Indexed Job through reclaims, as the API server of a cluster with a gang scheduler has it."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kinds.kind_jobs import ELASTIC
from tests.controlplane.kinds.operator_world import OperatorWorld, world
from tests.controlplane.kinds.operators import define
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_GROUP, _VERSION = "scheduling.sigs.k8s.io", "v1alpha1"
_NAMED = "scheduling.k8s.io/group-name"
_SPEC = {"type": "object", "properties": {"minMember": {"type": "integer", "format": "int32"}}}
_SCHEMA = {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC}}}
_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    # The API server demands it of this group.
    "metadata": {"name": f"podgroups.{_GROUP}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
    "spec": {
        "group": _GROUP,
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "versions": [{"name": _VERSION, "served": True, "storage": True, "schema": _SCHEMA}],
    },
}


class PodGroups:
    """The PodGroups of a test's namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._path = f"/apis/{_GROUP}/{_VERSION}/namespaces/{namespace}/podgroups"

    async def create(self, name: str, least: int) -> None:
        kind = {"apiVersion": f"{_GROUP}/{_VERSION}", "kind": "PodGroup"}
        await self._api.create(self._path, {**kind, "metadata": {"name": name}, "spec": {"minMember": least}})

    async def delete(self, name: str) -> None:
        await self._api.delete(f"{self._path}/{name}")


@pytest.mark.brief
async def test_no_run_is_smaller_than_the_gang_also_while_its_podgroup_is_gone(
    plane: ControlPlane, api: Api, jobs: BatchJobs, tmp_path: Path
) -> None:
    """The job itself would go on with two; a new PodGroup of two lets it."""
    await define(api, _DEFINITION)
    groups = PodGroups(api, jobs.namespace.name)
    await groups.create("train", 3)
    await jobs.nodes(5)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", 4, ELASTIC, pod_annotations={_NAMED: "train"})
        await jobs.runs("j", 4)
        await one.decided("j", "Running", run=1, workers=4)
        assert await _gang(one, "j") == {
            "workers": 3,
            "pods": 3,
            "source": f"PodGroup train ({_GROUP})",
            "group": "train",
        }
        free = next(iter(await _nodes(one) - {await one.node_of("j", f"worker-{each}") for each in range(4)}))
        noticed = [await one.node_of("j", f"worker-{each}") for each in (2, 3)]
        await one.stop("j", [*noticed, free])
        await groups.delete("train")
        # The watch says what comes later after the deletion.
        await groups.create("later", 1)
        await jobs.submit("k", 1, ELASTIC, pod_annotations={_NAMED: "later"})
        await until(lambda: _gang(one, "k"), "the gang of k is stored")
        job = await one.supervised("j")
        assert (job["spec"]["minWorkers"], job["status"]["decision"]["phase"]) == (3, "Suspended")
        await jobs.delete("k")
        await one.withdraw([free])
        await one.decided("j", "Running", run=2, workers=3)
        await one.stop("j", [free])
        await groups.create("train", 2)
        await one.decided("j", "Running", run=3, workers=2)


async def _gang(one: OperatorWorld[Any], name: str) -> Any:
    """The gang of a job as it is stored; None while there is none."""
    if f"batchjob.{name}" not in await one.names():
        return None
    return (await one.supervised(name))["spec"].get("gang")


async def _nodes(one: OperatorWorld[Any]) -> set[str]:
    """The nodes of the test's namespace."""
    listed = await one.api.get("/api/v1/nodes", labelSelector=f"controlplane.test/namespace={one.jobs.namespace.name}")
    return {each["metadata"]["name"] for each in listed["items"]}
