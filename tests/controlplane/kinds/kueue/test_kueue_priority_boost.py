"""The priority boosts that a supervisor's process, with its own rights, writes into Workloads of the real Kueue.

This Kueue is too old to act by them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.kueue.kueue_jobs import QueuedJobs
from tests.controlplane.kinds.mpijob.mpijob_jobs import MpiJobs
from tests.controlplane.kinds.operator_world import restarted, world
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_KUEUES = "kueue.x-k8s.io/priority-boost"
_OURS = "job-supervisor.kube-ai.io/priority-boost"
_MAXIMUM = 4
_SETTINGS = {
    "kueue_priority_boost_max": _MAXIMUM,
    "kueue_priority_boost_step_seconds": 1.0,
    "kueue_priority_boost_hold_seconds": 1.0,
}


async def _annotations(queued: QueuedJobs[MpiJobs], name: str) -> Mapping[str, str]:
    return dict((await queued.workload(name))["metadata"].get("annotations", {}))


async def _has(queued: QueuedJobs[MpiJobs], name: str, *boosts: int) -> None:
    """Returns once the supervisor has given the job one of these boosts; none means no annotation at all."""
    expected = [{_KUEUES: str(boost), _OURS: str(boost)} for boost in boosts] or [{}]

    async def reached() -> bool:
        return await _annotations(queued, name) in expected

    await until(reached, f"{name} has one of the boosts {boosts}")


async def _annotate(queued: QueuedJobs[MpiJobs], name: str, boost: str | None) -> None:
    """Somebody else writes Kueue's annotation."""
    metadata = (await queued.workload(name))["metadata"]
    path = f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{metadata['namespace']}/workloads/{metadata['name']}"
    await queued.api.patch(path, {"metadata": {"annotations": {_KUEUES: boost}}})


@pytest.mark.brief
async def test_a_boost_grows_until_the_job_saves(
    plane: ControlPlane, queued: QueuedJobs[MpiJobs], tmp_path: Path
) -> None:
    """A job whose checkpoints fit into the grace of its pods, which is five seconds, has none."""
    await queued.jobs.nodes(3)
    async with world(plane, queued.jobs, tmp_path / "supervisor", **_SETTINGS) as one:
        await queued.submit("j", 3)
        await queued.jobs.runs("j", 3)
        await one.decided("j", "Running", run=1)
        rank_zero = await one.train("j", "worker-0")
        told = await rank_zero.lines.matching(type="directive", directive="RUN")
        await _has(queued, "j", _MAXIMUM)
        await rank_zero.reports("saved", told, checkpoint_seconds=60.0)
        await _has(queued, "j", *range(1, _MAXIMUM))
        await _has(queued, "j", _MAXIMUM)
        await rank_zero.reports("saved", told, checkpoint_seconds=0.5)
        await _has(queued, "j")
        assert (await queued.workload("j"))["spec"]["active"]
        assert await queued.jobs.retries("j") == 0


async def test_a_boost_of_somebody_else_stays_and_that_of_an_evicted_job_goes(
    plane: ControlPlane, queued: QueuedJobs[MpiJobs], tmp_path: Path
) -> None:
    await queued.jobs.nodes(3)
    async with world(plane, queued.jobs, tmp_path / "supervisor", **_SETTINGS) as one:
        await queued.submit("j", 3)
        await queued.jobs.runs("j", 3)
        await _has(queued, "j", _MAXIMUM)
        await _annotate(queued, "j", "50")
        await until(lambda: "workload.boosted_by_other" in one.supervisor.log.read_text(), "it is noticed")
        assert (await _annotations(queued, "j"))[_KUEUES] == "50"
        await _annotate(queued, "j", None)
        await _has(queued, "j", _MAXIMUM)
        await queued.submit("urgent", 3, urgent=True, annotations={})
        await one.decided("j", "Queued")
        await _has(queued, "j")
        await queued.jobs.runs("urgent", 3)
        assert one.supervisor.log.read_text().count("workload.boosted_by_other") == 1


async def test_a_supervisor_without_the_setting_removes_what_an_earlier_one_has_written(
    plane: ControlPlane, queued: QueuedJobs[MpiJobs], tmp_path: Path
) -> None:
    """And only its own."""
    directory = tmp_path / "supervisor"
    await queued.jobs.nodes(3)
    async with world(plane, queued.jobs, directory, **_SETTINGS) as one:
        await queued.submit("j", 2)
        await queued.jobs.runs("j", 2)
        await _has(queued, "j", _MAXIMUM)
        one.supervisor.process.kill()
        await until(lambda: one.supervisor.process.poll() is not None, "the supervisor is killed")
        async with restarted(one, directory):
            await _has(queued, "j")
            await _annotate(queued, "j", "50")
            await queued.jobs.annotate("j", managed_by_job_supervisor=None)
            written: Any = await _annotations(queued, "j")
            assert written == {_KUEUES: "50"}
