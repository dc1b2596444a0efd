"""MPIJobs through reclaims, by a supervisor's process with its own rights, under the real operator."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.controlplane.kinds.kind_jobs import ELASTIC, PREFIX
from tests.controlplane.kinds.mpijob.mpijob_jobs import MpiJobs
from tests.controlplane.kinds.operator_world import restarted, world
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_EXCLUDED = f"{PREFIX}excluded-pods"


@pytest.mark.brief
async def test_a_noticed_host_leaves_the_list_before_it_dies_and_is_replaced(
    plane: ControlPlane, jobs: MpiJobs, tmp_path: Path
) -> None:
    await jobs.nodes(4)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", 3)
        before = await jobs.runs("j", 3)
        await one.decided("j", "Running")
        noticed = await one.node_of("j", "worker-1")
        await one.notice([noticed], left=10)
        await jobs.discovers("j", "worker-0", "worker-2")
        excluded = (await jobs.pods("j"))["worker-1"]
        assert excluded["metadata"]["uid"] == before["worker-1"]["metadata"]["uid"]
        assert excluded["status"]["phase"] == "Running"
        await one.decided("j", "Running")
        assert _launcher(await jobs.pods("j")) == f"j-worker-1 {excluded['metadata']['uid']}\n"
        await jobs.discovers("j", "worker-0", "worker-1", "worker-2")
        assert await one.node_of("j", "worker-1") != noticed
        after = await jobs.runs("j", 3)
        kept = ["launcher", "worker-0", "worker-2"]
        assert [after[name]["metadata"]["uid"] for name in kept] == [before[name]["metadata"]["uid"] for name in kept]
        assert await jobs.retries("j") == 0


async def test_a_withdrawn_notice_takes_everything_back(plane: ControlPlane, jobs: MpiJobs, tmp_path: Path) -> None:
    """Three times over: no pod is another one, and nothing is left of it."""
    await jobs.nodes(3)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", 3)
        before = await jobs.runs("j", 3)
        await one.decided("j", "Running")
        node = await one.node_of("j", "worker-2")
        for _ in range(3):
            await one.notice([node])
            await jobs.discovers("j", "worker-0", "worker-1")
            await one.withdraw([node])
            await jobs.discovers("j", "worker-0", "worker-1", "worker-2")
        await one.decided("j", "Running", workers=3)
        after = await jobs.runs("j", 3)
        for name, pod in before.items():
            assert after[name]["metadata"]["uid"] == pod["metadata"]["uid"]
            assert after[name]["metadata"]["labels"] == pod["metadata"]["labels"]
        assert not _launcher(after)
        assert (await jobs.get("j"))["metadata"]["annotations"] == ELASTIC
        assert await jobs.retries("j") == 0


async def test_a_suspension_that_was_decided_when_the_supervisor_was_killed_is_carried_out(
    plane: ControlPlane, jobs: MpiJobs, tmp_path: Path
) -> None:
    """Rank 0 has left by then, and nothing else was done yet; no retry is burned."""
    await jobs.nodes(2)
    directory = tmp_path / "supervisor"
    async with world(plane, jobs, directory, failpoint="decision.stored:3") as one:
        await jobs.submit("j", 2)
        await jobs.runs("j", 2)
        await one.decided("j", "Running")
        noticed = await one.node_of("j", "worker-1")
        rank_zero = await one.train("j", "worker-0")
        await one.notice([noticed])
        stop = await rank_zero.lines.matching(type="directive", directive="STOP")
        with suppress(aiohttp.ClientError):
            await rank_zero.reports("left", stop)
        await until(lambda: one.supervisor.process.poll() is not None, "the supervisor is killed")
        async with restarted(one, directory) as other:
            await other.decided("j", "Suspended")
            await jobs.has_pods("j")
            await other.withdraw([noticed])
            await jobs.runs("j", 2)
            await other.decided("j", "Running", run=2)
            assert await jobs.retries("j") == 0


async def test_a_job_with_a_deadline_survives_a_long_suspension(
    plane: ControlPlane, jobs: MpiJobs, tmp_path: Path
) -> None:
    """Its deadline would be counted from its first start."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", 2, activeDeadlineSeconds=15)
        await jobs.runs("j", 2)
        await one.decided("j", "Running")
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await until(lambda: jobs.began_before("j", 15.0), "longer ago than its deadline")
        await one.withdraw([noticed])
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=2)
        assert not (await jobs.conditions("j")).get("Failed")


def _launcher(pods: dict[str, Any]) -> str:
    return str(pods["launcher"]["metadata"].get("annotations", {}).get(_EXCLUDED, ""))
