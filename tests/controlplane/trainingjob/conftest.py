from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from supervisor.domain.job import Phase
from tests.controlplane.operator.operator_jobs import defined, operating
from tests.controlplane.trainingjob.trainingjob_world import ElasticJobs, Supervision, elastic, supervising
from tests.supervisor.jobs.trainingjob.trainingjob_objects import OPTED_IN
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster

Operated = Callable[..., AbstractAsyncContextManager[Supervision]]
RunningJob = Callable[..., AbstractAsyncContextManager[Supervision]]


@pytest.fixture
async def jobs(cluster: RunningCluster, api: Api, namespace: Namespace, tmp_path: Path) -> ElasticJobs:
    """The jobs of the test's namespace; nobody runs them yet, and there is no node for them."""
    await defined(cluster)
    return elastic(api, namespace, tmp_path)


@pytest.fixture
def operated(cluster: RunningCluster, jobs: ElasticJobs, tmp_path: Path) -> Operated:
    """Supervises jobs beside their operator, on some nodes with room for one worker each."""

    @asynccontextmanager
    async def start(nodes: int = 3, **policy: float) -> AsyncIterator[Supervision]:
        await jobs.nodes(nodes)
        async with (
            supervising(cluster, jobs.namespace, tmp_path, **policy) as supervised,  # type: ignore[arg-type]
            operating(cluster, jobs.namespace.name),
        ):
            yield supervised

    return start


@pytest.fixture
def running_job(operated: Operated, jobs: ElasticJobs) -> RunningJob:
    """The same as `operated`, with a job `bert` that runs on `workers` workers."""

    @asynccontextmanager
    async def start(
        workers: int, nodes: int = 3, annotations: Mapping[str, str] = OPTED_IN, **policy: float
    ) -> AsyncIterator[Supervision]:
        async with operated(nodes, **policy) as supervised:
            await jobs.submit("bert", workers, annotations=annotations)
            await supervised.phase("bert", Phase.RUNNING)
            yield supervised

    return start
