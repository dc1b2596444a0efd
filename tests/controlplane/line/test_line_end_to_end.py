"""A TrainingJob through two reclaims: smaller and grown again, then saved, suspended and resumed; nothing is lost."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from simulator.events import JobEvent, JobEventKind
from simulator.harness import ServiceSettings
from tests.controlplane.line.line_history import LineHistory, watching
from tests.controlplane.line.line_world import LineJob, LineJobPlan, LineWorld, world
from tests.testkit.controlplane.installed import JOBS, NOTICES
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long

LEAD = 12.0
"""Seconds from a notice to the end of its node; a tenth of what clouds give."""

WINDOW = {"JOB_SUPERVISOR_WINDOW_SECONDS": "4"}
"""Two agents of a busy machine may poll their metadata seconds apart, and the test is about one group."""

SUPERVISED = "trainingjob.j"


@pytest.mark.brief
async def test_a_job_shrinks_grows_stops_resumes_and_succeeds(plane: ControlPlane, tmp_path: Path) -> None:
    """8 workers become 6 and 8 again, then a group leaves 1 of at least 2: saved, suspended, resumed on new nodes."""
    async with (
        world(plane, tmp_path / "world", ServiceSettings(WINDOW)) as one,
        watching(plane.cluster, JOBS) as shown,
    ):
        small = await one.nodes("a0", "a1", gpus=1)
        large = [await one.add_node("b0", 3), await one.add_node("b1", 2)]
        await one.add_node("c0", 1)
        await one.connected()
        job = await one.job(
            "j",
            LineJobPlan(workers=8, min_workers=2, steps=240, step_seconds=0.15, worker={"restartPolicy": "Always"}),
        )
        await one.training(job, workers=8)
        shrunk = asyncio.create_task(one.reclaim(small, LEAD, "shrink"))
        await one.training(job, workers=6)
        await one.cordon(small)
        await shrunk
        large.append(await one.add_node("d0", 2))
        await one.training(job, workers=8)
        await _stopped_and_suspended(one, job, large)
        await one.take_away(large)
        await one.add_node("e0", 7)
        await one.jobs.phase("j", "Succeeded", seconds=120)
        await one.decided(job, "Finished")
        _nothing_was_lost(one, job)
        assert not (await one.jobs.status("j")).get("restartCount")
        _all_was_readable(shown)
        subjects = sorted(str(each["Subject"]) for each in await one.here.table(NOTICES))
        assert subjects == sorted([*small, *large])
        for name, seconds in _figures(one, job, shown).items():
            print(f"{name}: {seconds:.2f} s")  # noqa: T201 - what a person waits for


async def _stopped_and_suspended(one: LineWorld, job: LineJob, nodes: Sequence[str]) -> None:
    one.notice(nodes, LEAD, "stop")
    await one.decided(job, "Suspended")
    await one.jobs.phase(job.name, "Suspended")
    await one.jobs.has_pods(job.name)


def _nothing_was_lost(one: LineWorld, job: LineJob) -> None:
    verdict = one.verdict(job)
    assert verdict.ok, verdict.failures
    assert verdict.figures.parameters_equal
    assert verdict.figures.changes_per_group == (1,)
    assert verdict.figures.notice_to_process.count > 0
    assert (verdict.figures.suspensions, verdict.figures.resumes) == (1, 1)


def _all_was_readable(shown: LineHistory) -> None:
    course = ["Running", "Shrinking", "Running", "Stopping", "Suspended", "Resuming", "Running", "Finished"]
    assert shown.phases(SUPERVISED)[-len(course) :] == course
    lines = [line.columns for line in shown.of(SUPERVISED)]
    sizes = {(columns["Phase"], columns["Workers"], columns["Excluded"]) for columns in lines}
    assert sizes >= {("Running", 8, 0), ("Running", 6, 2)}


def _figures(one: LineWorld, job: LineJob, shown: LineHistory) -> dict[str, float]:
    flag = one.verdict(job).figures.notice_to_flag.longest
    events = job.events()
    told = next(event.t for event in events if _is(event, JobEventKind.FLAG_SEEN, run=1, rank=0))
    resumed = next(event.t for event in events if _is(event, JobEventKind.STEP_APPLIED, run=2))
    assert flag is not None
    return {
        "notice to STOP in rank 0": flag,
        "STOP in rank 0 to Suspended": shown.first(SUPERVISED, "Suspended", told) - told,
        "Resuming to the first step": resumed - shown.first(SUPERVISED, "Resuming"),
    }


def _is(event: JobEvent, kind: JobEventKind, **fields: int) -> bool:
    return event.kind is kind and all(event.integer(name) == value for name, value in fields.items())
