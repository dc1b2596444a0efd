"""A capacity decision on a large cluster is short: 18,000 to 95,000 lines, and 1 to 4 ms where it was measured."""

from collections.abc import AsyncIterator, Iterator
from itertools import islice

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.cluster.allocation import Allocation
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import Demand, ResourceRequest
from supervisor.domain.ids import Host
from tests.supervisor.cluster.cluster_scene import ClusterScene, cluster_scene, known_jobs
from tests.supervisor.decide.capacity_builders import EVERYTHING, SPOT, demand, waiting
from tests.testkit.work import lines_run

NODES, PODS_A_NODE, JOBS = 500, 8, 50
AT_MOST_LINES = 200_000


@pytest.fixture
async def scene() -> AsyncIterator[ClusterScene]:
    """500 nodes, each full with eight pods of one GPU."""
    async with cluster_scene() as full:
        for number in range(NODES):
            full.node(f"n{number}", gpus=PODS_A_NODE, taints=(SPOT,))
            for pod in range(PODS_A_NODE):
                full.pod(f"p{number}-{pod}", f"n{number}")
        yield full


def _ask(number: int, *, alike: bool) -> ResourceRequest:
    """Where jobs are not alike, no two ask for the same."""
    worker, launcher = demand(1, cpu=4, tolerations=EVERYTHING), demand(cpu=2, tolerations=EVERYTHING)
    return (
        ResourceRequest(worker=worker, launcher=launcher)
        if alike
        else ResourceRequest(worker=_more(worker, number), launcher=launcher)
    )


def _more(asked: Demand, number: int) -> Demand:
    return demand(1 + number % 4, cpu=4 + number, tolerations=asked.tolerations)


def _freed(scene: ClusterScene, count: int) -> None:
    thirds: Iterator[str] = (f"p{index // PODS_A_NODE}-{index % PODS_A_NODE}" for index in range(0, 4000, 3))
    pods = {key.name: pod for key, pod in scene.view.pods.items()}
    for name in islice(thirds, count):
        scene.pod_gone(pods[name])


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "all different"])
@pytest.mark.parametrize(("freed", "noticed"), [(0, 0), (400, 0), (1300, 0), (400, 200)])
async def test_a_pass_over_a_large_cluster_is_short(
    scene: ClusterScene, freed: int, noticed: int, *, alike: bool
) -> None:
    """Whether there is no room, some, plenty, or many nodes will be reclaimed; and after each change of a pod."""
    _freed(scene, freed)
    jobs = [waiting(f"job-{number}", 4, 8, since=number) for number in range(JOBS)]
    asks = {job.name: _ask(number, alike=alike) for number, job in enumerate(jobs)}
    shares = Allocation(scene.view, Policy(), known_jobs(asks), Bulkhead(Clock()))
    doomed = {Host(f"n{number}") for number in range(noticed)}
    granted = shares.granted(jobs, doomed)
    assert any(grant.hosts or grant.held_up for grant in granted.values())
    scene.pod("late", "n499")
    assert lines_run(lambda: shares.granted(jobs, doomed)) < AT_MOST_LINES
