"""Jobs on a pool of the real Karpenter, which adds nodes for pending pods alone and removes nodes that it likes."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.karpenter.karpenter_controller import KarpenterJobs, KarpenterPool
from tests.controlplane.kinds.operator_world import OperatorWorld, world
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_NOTICES = "/apis/job-supervisor.kube-ai.io/v1alpha1/reclaimnotices"
_EVICTIONS_ARE_FREE = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}


@pytest.mark.brief
async def test_a_suspended_job_resumes_on_a_pool_that_only_grows_for_pending_pods(
    plane: ControlPlane, jobs: KarpenterJobs, pool: KarpenterPool, tmp_path: Path
) -> None:
    """No node has room for it, so its resume is a probe, for whose pods Karpenter makes a node."""
    async with world(plane, jobs, tmp_path / "supervisor", probe_seconds=2.0) as one:
        await jobs.submit_workers("j", 2)
        await _running(one, run=1)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await pool.remove(noticed)
        await _running(one, run=2)
        assert noticed not in await pool.nodes()
        assert await jobs.retries("j") == 0


async def test_the_pods_of_a_removed_node_leave_with_a_checkpoint(
    plane: ControlPlane, jobs: KarpenterJobs, pool: KarpenterPool, tmp_path: Path
) -> None:
    """The taint is a hint, upon which rank 0 saves; the eviction that follows it stops the job."""
    async with world(plane, jobs, tmp_path / "supervisor", probe_seconds=2.0) as one:
        await jobs.submit("j", 2, podFailurePolicy=_EVICTIONS_ARE_FREE)
        await _running(one, run=1)
        rank_zero = await one.train("j", "worker-0")
        removed = await one.node_of("j", "worker-1")
        await pool.remove(removed)
        directive = await rank_zero.lines.matching(type="directive", directive="STOP")
        await rank_zero.reports("left", directive)
        await _running(one, run=2)
        assert (await _notice(one, removed, "expired"))["status"]["noticeClass"] == "hint"
        assert removed not in await pool.nodes()
        assert await jobs.retries("j") == 0


async def test_karpenter_waits_for_pods_that_must_not_be_disrupted(
    plane: ControlPlane, jobs: KarpenterJobs, pool: KarpenterPool, tmp_path: Path
) -> None:
    """The job saves, and trains on; the node goes once the job stops."""
    async with world(plane, jobs, tmp_path / "supervisor", probe_seconds=2.0) as one:
        await jobs.submit("j", 2, pod_annotations={"karpenter.sh/do-not-disrupt": "true"})
        await _running(one, run=1)
        rank_zero = await one.train("j", "worker-0")
        removed = await one.node_of("j", "worker-1")
        await pool.remove(removed)
        await rank_zero.lines.matching(type="directive", directive="CHECKPOINT")
        assert (await _notice(one, removed, "active"))["status"]["noticeClass"] == "hint"
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1, workers=2)
        await jobs.annotate("j", suspend="ann: power cut at noon")
        directive = await rank_zero.lines.matching(type="directive", directive="STOP")
        await rank_zero.reports("left", directive)
        await _notice(one, removed, "expired")


async def _running(one: OperatorWorld[KarpenterJobs], run: int) -> None:
    await one.jobs.runs("j", 2)
    await one.decided("j", "Running", run=run, workers=2)


async def _notice(one: OperatorWorld[KarpenterJobs], node: str, state: str) -> Any:
    """The notice of the node's removal, once it is in that state."""

    async def found() -> Any:
        notices = (await one.api.get(_NOTICES))["items"]
        about = ((each["spec"]["source"], each["spec"]["subject"]["name"], each["status"]["state"]) for each in notices)
        return dict(zip(about, notices, strict=True)).get(("scale-in", node, state))

    return await until(found, f"the removal of {node} is {state}")
