"""Metrics of a real reclaim under a TrainingJob, on the leader and on standbys."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.harness import ServiceSettings
from tests.controlplane.leader.leader_replicas import LeaderReplicas
from tests.controlplane.line.line_world import LineJobPlan, world
from tests.supervisor.observability.metrics.test_observability_metrics import Scraped, scrape
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import NotYet, until

pytestmark = pytest.mark.long

POOL = {"cloud": "aliyun", "zone": "cn-simulated-a", "instance_type": "ecs.simulated.large"}
"""What the simulated cloud tells the agents."""


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as port:
        return f"127.0.0.1:{port.getsockname()[1]}"


async def scraped_when(address: str, condition: Callable[[Scraped], bool], what: str) -> Scraped:
    """The first scrape that fulfils it."""

    async def look() -> Scraped:
        found = await scrape(address)
        if not condition(found):
            raise NotYet
        return found

    return await until(look, f"{what} at {address}")


async def scraped(address: str, name: str, **labels: str) -> Scraped:
    return await scraped_when(address, lambda found: bool(found.value(name, **labels)), name)


def all_covered(found: Scraped) -> bool:
    """Both workers are known, and for each a notice would be heard and passed on."""
    uncovered = [found.value("uncovered_workers", missing=missing) for missing in ("agent", "stream")]
    return found.value("workers") == 2 and uncovered == [0, 0]


@pytest.mark.brief
async def test_a_clusters_reclaim_is_measured(own_controlplane: ControlPlane, tmp_path: Path) -> None:
    """In which pool the nodes are, what the job's GPUs are left to others for, who hears of a notice, its Events."""
    address = free_address()
    given = ServiceSettings(supervisor={"JOB_SUPERVISOR_METRICS_ADDRESS": address})
    async with world(own_controlplane, tmp_path, given) as one:
        await one.nodes("n0", "n1", gpus=1)
        await one.connected()
        job = await one.job("j", LineJobPlan(workers=2, min_workers=2, steps=3000, step_seconds=0.1))
        await one.training(job, workers=2)
        # A worker trains without waiting for its stream to the supervisor, so it may be covered later.
        await scraped_when(address, all_covered, "two covered workers")
        one.notice([await one.node_of("j-worker-1")], lead=120)
        await one.decided(job, "Suspended")
        after = await scraped(address, "released_gpu_seconds_total")
        assert after.value("reclaims_total", source="aliyun", **POOL) == 1
        assert after.value("pool_worker_seconds_total", price_class="unknown", **POOL) == after.value(
            "pool_unpriced_worker_seconds_total", price_class="unknown", **POOL
        )
        assert after.value("released_gpu_seconds_total") == after.value("released_worker_seconds_total")
        assert after.value("notice_to_directive_seconds_count", directive="STOP") == 1
        assert after.value("jobs", phase="Suspended") == 1
        assert await scraped(address, "kubernetes_events_total", outcome="sent")


async def test_a_supervisor_that_stands_by_is_measured(here: InstalledPlace, tmp_path: Path) -> None:
    """It serves what every supervisor has, and nothing of what a leader counts."""
    addresses = [free_address(), free_address()]
    async with LeaderReplicas.on(here, tmp_path) as replicas:
        await replicas.forget_lease()
        leading = await replicas.start(metrics_address=addresses[0])
        standing_by = await replicas.start(metrics_address=addresses[1], serving=False)
        await until(lambda: leading.heard("metrics.listening") and standing_by.heard("metrics.listening"))
        leader = await scraped(addresses[0], "leader")
        other = await scrape(addresses[1])
    assert leader.value("jobs", phase="Running") == 0
    assert (other.value("leader"), other.value("jobs", phase="Running")) == (0, None)
