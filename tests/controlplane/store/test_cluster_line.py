"""A stand-alone supervisor and job work with the store in a cluster."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from simulator.cloud.schedule import KillNode, ScheduledNotice
from simulator.harness import ServiceSettings, world
from simulator.services import ServedJobPlan
from supervisor.wiring.startup import STORE_FILE
from tests.testkit.controlplane.installed import JOBS, NOTICES, InstalledPlace, job_path
from tests.testkit.waiting import until
from tests.testkit.worlds import LEAD, group, node

pytestmark = pytest.mark.long

LEAD_OVER_RESTART = LEAD + 10.0
"""A supervisor needs some seconds to be started again on a busy machine, and as many until it leads."""

NODES = ["node1", "node2", "node3", "node4"]


def settings(here: InstalledPlace) -> Mapping[str, str]:
    return {"JOB_SUPERVISOR_STORE": "kubernetes", "KUBECONFIG": str(here.kubeconfig)}


async def test_a_group_leaves_in_one_change_and_its_facts_lie_in_the_cluster(
    here: InstalledPlace, tmp_path: Path
) -> None:
    """Two of four hosts go; afterwards kubectl shows two notices and a job that has finished."""
    async with world(tmp_path, NODES, settings=ServiceSettings(supervisor=settings(here))) as one:
        job = one.start_job(ServedJobPlan(min_workers=2, max_workers=4, steps=160, step_seconds=0.05))
        await one.until_training(job, workers=4)
        await one.play([*group("g", 2, 3), KillNode(LEAD, node(2)), KillNode(LEAD, node(3))])
        assert await job.wait(90) == 0
        verdict = one.verdict(job)
        assert verdict.ok, verdict.failures
        assert verdict.figures.changes_per_group == (1,)
        assert verdict.figures.suspensions == 0
        assert sorted(each["Subject"] for each in await here.table(NOTICES)) == ["node2", "node3"]
        (shown,) = await here.table(JOBS)
        assert (shown["Name"], shown["Phase"]) == ("standalone.demo", "Finished")
        assert not (one.paths.supervisor / STORE_FILE).exists()


async def test_a_job_that_a_person_deletes_is_registered_again_and_still_moved(
    here: InstalledPlace, tmp_path: Path
) -> None:
    """In mid-run: training goes on, and a reclaim that comes later finds the job."""
    async with world(tmp_path, NODES, settings=ServiceSettings(supervisor=settings(here))) as one:
        job = one.start_job(ServedJobPlan(min_workers=2, max_workers=4, steps=200, step_seconds=0.05))
        await one.until_training(job, workers=4)
        (before,) = await here.jobs()
        await here.api.delete(job_path("standalone.demo"))

        async def registered() -> bool:
            return [each["spec"]["uid"] for each in await here.jobs()] not in ([], [before["spec"]["uid"]])

        await until(registered, "the job to be registered again")
        await one.play([*group("g", 2, 3), KillNode(LEAD, node(2)), KillNode(LEAD, node(3))])
        assert await job.wait(90) == 0
        verdict = one.verdict(job)
        assert verdict.ok, verdict.failures
        assert verdict.figures.suspensions == 0


async def test_a_supervisor_that_is_killed_goes_on_from_what_lies_in_the_cluster(
    here: InstalledPlace, tmp_path: Path
) -> None:
    """Kill -9 right after the notices: none is lost or doubled, one change of the list, no false stop."""
    async with world(tmp_path, NODES, settings=ServiceSettings(supervisor=settings(here))) as one:
        job = one.start_job(ServedJobPlan(min_workers=2, max_workers=4, steps=500, step_seconds=0.05))
        await one.until_training(job, workers=4)
        await one.play([ScheduledNotice(0, node(number), LEAD_OVER_RESTART, "g") for number in (2, 3)])
        await one.supervisor.kill()
        await one.supervisor.start()
        await one.until(lambda status: len(status.notices) == 2, "both notices")
        await one.play([KillNode(LEAD, node(2)), KillNode(LEAD, node(3))])
        assert await job.wait(90) == 0
        verdict = one.verdict(job)
        assert verdict.ok, verdict.failures
        assert verdict.figures.suspensions == 0
        assert len(await here.notices()) == 2
