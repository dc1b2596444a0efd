"""A supervisor whose settings name a kind, or namespaces, has no right on other jobs and needs none."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kinds.operator_world import OperatorWorld, world
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import fresh_namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster

pytestmark = pytest.mark.long


@pytest.fixture
async def others(cluster: RunningCluster, api: Api) -> AsyncIterator[BatchJobs]:
    """The jobs of another namespace."""
    async with fresh_namespace(cluster, api) as namespace:
        yield BatchJobs(api, namespace)


@pytest.mark.brief
async def test_one_kind_needs_the_rights_of_that_kind_alone(
    plane: ControlPlane, jobs: BatchJobs, tmp_path: Path
) -> None:
    """It goes through a reclaim, and nothing is asked of the API server that it refuses."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor", kinds=("batchjob",)) as one:
        await _goes_through_a_reclaim(one)
    assert _said(tmp_path, "kinds.supervised")["kinds"] == ["batchjob"]
    assert "forbidden" not in _log(tmp_path)


async def test_jobs_of_other_namespaces_are_left_alone(
    plane: ControlPlane, jobs: BatchJobs, others: BatchJobs, tmp_path: Path
) -> None:
    """Those of two namespaces go through a reclaim by the rights of Roles there, and none beside is seen."""
    await jobs.nodes(2)
    await others.nodes(1)
    async with fresh_namespace(plane.cluster, jobs.api) as third:
        outside = BatchJobs(jobs.api, third)
        await outside.nodes(1)
        await outside.submit("j", 1)
        await outside.runs("j", 1)
        supervised = (others.namespace.name, jobs.namespace.name)
        async with world(plane, jobs, tmp_path / "supervisor", namespaces=supervised) as one:
            await _goes_through_a_reclaim(one)
            await others.submit("j", 1)
            await OperatorWorld(one.here, others, one.supervisor).decided("j", "Running", run=1, workers=1)
            assert not await OperatorWorld(one.here, outside, one.supervisor).names()
    assert "forbidden" not in _log(tmp_path)


async def _goes_through_a_reclaim(one: OperatorWorld[BatchJobs]) -> None:
    await one.jobs.submit("j", 2)
    await one.jobs.runs("j", 2)
    await one.decided("j", "Running", run=1, workers=2)
    noticed = await one.node_of("j", "worker-1")
    await one.stop("j", [noticed])
    await one.withdraw([noticed])
    await one.jobs.runs("j", 2)
    await one.decided("j", "Running", run=2, workers=2)


def _log(directory: Path) -> str:
    return (directory / "supervisor" / "log").read_text()


def _said(directory: Path, event: str) -> Any:
    [said] = [line for line in map(json.loads, _log(directory).splitlines()) if line["event"] == event]
    return said
